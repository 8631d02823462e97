"""How a report looks: on a phone, on paper, in the light and in the dark."""

# Colours that stay apart for every kind of colour blindness (Okabe and Ito, 2008); in print, lines differ by their dashes too.
STYLE = """
:root { --page: #fff; --text: #1d2430; --soft: #5b6675; --line: #dce1e8; --panel: #f5f7fa;
  --good: #00785a; --bad: #b34700; --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #a05a86;
  --c4: #e69f00; --c5: #7f8b99; --c6: #56b4e9; color-scheme: light dark; }
@media screen and (prefers-color-scheme: dark) {
  :root { --page: #14181f; --text: #e4e8ee; --soft: #9aa5b4; --line: #313946; --panel: #1d232c;
    --good: #3fc79c; --bad: #f0964f; --c0: #56b4e9; --c1: #f08a3c; --c2: #3fc79c; --c3: #d79ac0;
    --c4: #f0c04a; --c5: #8d99a8; --c6: #9ad0f5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 66rem; background: var(--page); color: var(--text);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { margin: 0; font-size: 1.7rem; overflow-wrap: anywhere; }
h2 { margin: 2.5rem 0 .6rem; padding-top: .6rem; border-top: 1px solid var(--line); font-size: 1.2rem; }
h3 { margin: 1rem 0 .3rem; font-size: 1rem; }
p { margin: .5rem 0; }
ul { margin: .5rem 0; padding-left: 1.2rem; }
li { overflow-wrap: anywhere; }
.soft, figcaption, caption { color: var(--soft); font-size: .875rem; }
.verdict { margin: 1rem 0; padding: .8rem 1rem; border-left: .4rem solid var(--bad); background: var(--panel); }
.verdict.good { border-color: var(--good); }
.verdict b { font-size: 1.15rem; }
.good > b, td .good { color: var(--good); }
.bad > b, td .bad, li.bad { color: var(--bad); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .6rem; }
.tiles div { padding: .5rem .8rem; background: var(--panel); }
.tiles b { display: block; font-size: 1.35rem; line-height: 1.3; }
.tiles span { color: var(--soft); font-size: .875rem; }
.side { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: .5rem 2rem; align-items: start; }
.side > * { min-width: 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .5rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top; }
th { font-weight: 500; }
thead th { color: var(--soft); vertical-align: bottom; }
th:first-child { padding-left: 0; text-align: left; }
.figures td { white-space: nowrap; }
.words td { text-align: left; overflow-wrap: anywhere; }
td small { display: block; color: var(--soft); }
figure { margin: .5rem 0; break-inside: avoid; }
figcaption b { margin-right: .4rem; color: var(--text); }
.key { margin-right: .6rem; white-space: nowrap; }
.key::before { content: ""; display: inline-block; width: .7em; height: .7em; margin-right: .3em; background: var(--colour); }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font-size: 12px; }
.c0 { --colour: var(--c0); } .c1 { --colour: var(--c1); } .c2 { --colour: var(--c2); } .c3 { --colour: var(--c3); }
.c4 { --colour: var(--c4); } .c5 { --colour: var(--c5); } .c6 { --colour: var(--c6); }
.gap { --colour: var(--bad); }
.grid { stroke: var(--line); }
.band { fill: var(--panel); }
.line { fill: none; stroke: var(--colour); stroke-width: 2; stroke-linejoin: round; }
.line.c1 { stroke-dasharray: 7 3; } .line.c2 { stroke-dasharray: 2 3; } .line.c3 { stroke-dasharray: 9 3 2 3; }
.line.c4 { stroke-dasharray: 12 3; } .line.c5 { stroke-dasharray: 4 2; } .line.c6 { stroke-dasharray: 9 3 2 3 2 3; }
.dot, .bar { fill: var(--colour); }
path.gap { fill: var(--bad); opacity: .35; }
.halo { paint-order: stroke; stroke: var(--page); stroke-width: 4px; }
.mark { stroke: var(--text); stroke-dasharray: 5 4; }
pre { padding: .8rem; overflow-x: auto; background: var(--panel); font-size: .8rem; line-height: 1.4; }
summary { margin-top: .5rem; color: var(--soft); cursor: pointer; font-size: .875rem; }
@media screen and (max-width: 30rem) {
  body { padding: 1rem .7rem 2rem; }
  table { font-size: .8rem; }
  th, td { padding: .25rem .3rem; }
}
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; }
  table, .tiles, .verdict, tr { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  pre { white-space: pre-wrap; }
}
"""
