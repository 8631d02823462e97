"""What a wrong recipe is told: every error at once, with its path, what was found, what is allowed and the nearest known name."""

from pathlib import Path

import pytest

from tftq.errors import RecipeError
from tftq.recipe.load import load_recipe

BARS = "name: first\ndata: {kind: bars, path: bars.parquet}\n"
TABLE = "name: first\ndata: {kind: table, path: t.csv, time: t, target: y, season: 24"


def refusal(folder: Path, text: str | bytes, *overrides: str) -> list[str]:
    """The lines of the error, the file's name taken out."""
    path = folder / "recipe.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, overrides)
    return str(caught.value).replace(f"{path}: ", "").splitlines()


def test_every_error_of_a_file_at_once(tmp_path: Path) -> None:
    text = """\
name: first
trian: {}
lr: 3
data:
  kind: bars
  lokback: 60
  season: 3
model:
  hidden: 30
  heads: 4
  hidden: 30
train:
  batch_size: true
  optimizer:
    lr: fast
"""
    assert refusal(tmp_path, text, "memory.budget_mb=0", "seed=x", "foo", "trai.epochs=3") == [
        "13 errors",
        "  trian (line 2): unknown key; did you mean train?",
        "  lr (line 3): unknown key; did you mean train.optimizer.lr or quant.qat.lr or quant.prune.lr?",
        "  data.path (line 4): missing; allowed: a path",
        "  data.lokback (line 6): unknown key; did you mean data.lookback?",
        "  data.season (line 7): is no option of data.kind bars; allowed: path, lookback, horizon, validation, test, time_zone, "
        "duplicates, missing, cache, kind, symbol, warmup",
        "  model.heads (line 10): 4 heads do not divide model.hidden 30; allowed: 1, 2, 3, 5, 6, 10, 15, 30",
        "  model.hidden (line 11): stands twice, on line 9 and line 11; allowed: once",
        "  train.batch_size (line 13): found True; allowed: a whole number, at least 1, at most 1000000",
        "  train.optimizer.lr (line 15): found 'fast'; allowed: a number, above 0",
        "  (command line): found 'foo'; allowed: key=value",
        "  trai.epochs (command line): unknown key; did you mean train?",
        "  seed (command line): found 'x'; allowed: a whole number, at least 0, below 4294967296",
        "  memory.budget_mb (command line): found 0; allowed: a whole number, at least 1, at most 1000000",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: 1\n" + BARS.split("\n")[1], "name (line 1): found 1; allowed: text, matching ^[A-Za-z0-9][A-Za-z0-9._-]*$; put it in quo"),
        ("name: a/b\n" + BARS.split("\n")[1], "name (line 1): found 'a/b'; allowed: text, matching ^[A-Za-z0-9][A-Za-z0-9._-]*$"),
        ("name: a", "data: missing; allowed: a mapping with kind bars or table, and the options of that kind"),
        ("name: a\ndata: 5", "data (line 2): found 5; allowed: a mapping with kind bars or table, and the options of that kind"),
        ("name: a\ndata: {path: p}", "data.kind (line 2): missing; allowed: bars or table"),
        ("name: a\ndata: {kind: bar, path: p}", "data.kind (line 2): found 'bar'; allowed: bars or table; did you mean bars?"),
        ("name: a\ndata: {kind: [bars], path: p}", "data.kind (line 2): found ['bars']; allowed: bars or table"),
        ("name: a\ndata: {kind: bars, path: ''}", "data.path (line 2): found an empty path; allowed: a path"),
        ("name: a\ndata: {kind: bars, path: p, symbol: 7}", "data.symbol (line 2): found 7; allowed: text, not empty or null; put it in"),
        (BARS + "5: a", "5 (line 3): unknown key; allowed: name, out, seed, device, data, model, train, validate, quant, export, memory"),
        (BARS + "seed: -1", "seed (line 3): found -1; allowed: a whole number, at least 0, below 4294967296"),
        (BARS + "seed: true", "seed (line 3): found True; allowed: a whole number, at least 0, below 4294967296"),
        (BARS + "device: gpu", "device (line 3): found 'gpu'; allowed: auto, cuda, cpu; did you mean cpu?"),
        (BARS + "model: [64]", "model (line 3): found [64]; allowed: a mapping with kind tft or mamba2, and the options of that kind"),
        (BARS + "model: {kind: mamba}", "model.kind (line 3): found 'mamba'; allowed: tft or mamba2; did you mean mamba2?"),
        (
            BARS + "model: {kind: mamba2, knots: 4}",
            "model.knots (line 3): is no option of model.kind mamba2; allowed: kind, hidden, layers",
        ),
        (BARS + "model: {layers: 2}", "model.layers (line 3): is no option of model.kind tft; allowed: kind, form, hidden, heads, lstm_l"),
        (BARS + "model: {kind: mamba2, layers: 0}", "model.layers (line 3): found 0; allowed: a whole number, at least 1, at most 10"),
        (BARS + "quant: {method: ptq, prune: [3]}", "quant.prune (line 3): found [3]; allowed: a mapping with the keys keep, epochs"),
        (BARS + "model: {dropout: .nan}", "model.dropout (line 3): found nan; allowed: a number, at least 0, below 1"),
        (BARS + "train: {clip_norm: .inf}", "train.clip_norm (line 3): found inf; allowed: a number, above 0 or null"),
        (BARS + "train: {clip_norm: true}", "train.clip_norm (line 3): found True; allowed: a number, above 0 or null"),
        (BARS + "train: {batch_size: 0}", "train.batch_size (line 3): found 0; allowed: a whole number, at least 1, at most 1000000"),
        (BARS + "train: {batch_size: null}", "train.batch_size (line 3): found None; allowed: a whole number, at least 1, at most 1000000"),
        (
            BARS + "validate: {batch_size: 0}",
            "validate.batch_size (line 3): found 0; allowed: a whole number, at least 1, at most 1000000 or null",
        ),
        (BARS + "train: {optimizer: {groups: {a: -1}}}", "train.optimizer.groups.a (line 3): found -1; allowed: a number, above 0"),
        (BARS + "export: {publish: 1}", "export.publish (line 3): found 1; allowed: true or false"),
        (BARS + "export: {formats: [fp23]}", "export.formats.0 (line 3): found 'fp23'; allowed: fp32, fp16, fp16_int8, int8_ptq, "),
        (BARS + "export: {formats: []}", "export.formats (line 3): found []; allowed: a list, each fp32, fp16, fp16_int8, int8_ptq, i"),
    ],
)
def test_wrong_values(tmp_path: Path, text: str, message: str) -> None:
    first, second = refusal(tmp_path, text)
    assert first == "1 error"
    assert second.strip().startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BARS[:-2] + ", validation: 0.6, test: 0.4}", "data.test (line 2): with data.validation 0.6 nothing is left to train on; allowed"),
        (TABLE + ", known: [a, a]}", "data.known (line 2): named twice: a; allowed: each name once"),
        (TABLE + ", known: [y]}", "data.known (line 2): y is the time or the target; allowed: columns known over the horizon"),
        (TABLE + ", known: [a], observed: [a, t]}", "data.observed (line 2): a, t has another role already (time, target or known); allo"),
        (
            BARS + "model: {form: paper, gates: shared}",
            "model.gates (line 3): shared gates are not those of the published model; allowed with model.form paper: own",
        ),
        (
            BARS + "train: {precision: fp16, accumulate: 2, optimizer: {in_backward: true}}",
            "train.optimizer.in_backward (line 3): true applies gradients before all are there, so that they cannot be clipped, summed up "
            "or unscaled; allowed with train.clip_norm null, train.accumulate 1, train.precision bf16 or fp32",
        ),
        (
            BARS + "model: {kind: mamba2, hidden: 6, head_dim: 8}",
            "model.head_dim (line 3): 8 does not divide model.expand * model.hidden 12; allowed: 1, 2, 3, 4, 6, 12",
        ),
        (
            BARS + "model: {kind: mamba2}\nquant: {method: ptq, lstm: int8}",
            "quant.lstm (line 4): model.kind mamba2 has no LSTM; leave quant.lstm out",
        ),
        (
            BARS + "model: {kind: mamba2}\nquant: {prune: {keep: 3}}",
            "quant.prune (line 4): model.kind mamba2 has no variable selection to prune by; leave quant.prune out",
        ),
        (
            BARS + "model: {kind: mamba2}\nexport: {formats: [fp32, stream]}",
            "export.formats (line 4): stream is a TFT cut in two, which model.kind mamba2 is not; leave it out",
        ),
        (BARS + "model: {kind: mamba2, quantiles: [0.4]}", "model.quantiles (line 3): found [0.4]; allowed: an odd count, strictly "),
        (BARS + "model: {hidden: 6}", "model.heads (line 3): 4 heads do not divide model.hidden 6; allowed: 1, 2, 3, 6"),
        (BARS + "model: {quantiles: [0.9, 0.5, 0.1]}", "model.quantiles (line 3): found [0.9, 0.5, 0.1]; allowed: an odd count, strictly "),
        (BARS + "model: {quantiles: [0.1, 0.5]}", "model.quantiles (line 3): found [0.1, 0.5]; allowed: an odd count, strictly "),
        (BARS + "model: {quantiles: [0.4]}", "model.quantiles (line 3): found [0.4]; allowed: an odd count, strictly "),
        (BARS + "model: {quantiles: []}", "model.quantiles (line 3): found []; allowed: an odd count, strictly "),
        (BARS + "train: {schedule: {warmup: 0.6}}", "train.schedule.cooldown (line 3): warmup 0.6 and cooldown 0.5 overlap; allowed: a s"),
        (BARS + "validate: {every: 11}", "validate.every (line 3): found 11; allowed: at most train.epochs 10"),
        (BARS + "quant: {method: ptq, loss_budget: -0.1}", "quant.loss_budget (line 3): found -0.1; allowed: a number, at least 0 or null"),
        (BARS + "quant: {method: ptq, keep_float: [heads, heads]}", "quant.keep_float (line 3): named twice: heads; allowed: each nam"),
        (BARS + "quant: {method: ptq, qat: {epochs: 3}}", "quant.qat (line 3): has no effect while quant.method is ptq; set quant.method"),
        (BARS + "quant: {method: qat, qat: {observe: 5, fake_quant: 4}}", "quant.qat.fake_quant (line 3): 4 comes before observe 5; allo"),
        (BARS + "quant: {method: qat, qat: {fake_quant: 9, freeze: 4}}", "quant.qat.freeze (line 3): 4 comes before fake_quant 9; allowe"),
        (BARS + "export: {formats: [fp32, int8_qat]}", "export.formats (line 3): int8_qat is not made while quant.method is none; allowe"),
        (BARS + "export: {formats: [fp32]}\nquant: {method: ptq}", "export.formats (line 3): lacks int8_ptq, so quant.method ptq has no"),
        (BARS + "quant: {weights: int2}", "quant.weights (line 3): found 'int2'; allowed: int8, int4"),
        (
            BARS + "export: {formats: [fp32, int8_ptq]}\nquant: {method: ptq, weights: int4}",
            "export.formats (line 3): int8_ptq is not made while quant.method is ptq and quant.weights is int4; allowed: fp16, fp16_",
        ),
        (BARS + "export: {formats: [fp16_int8]}", "export.formats (line 3): fp16_int8 is not made while quant.method is none; allowed: fp"),
        (
            BARS + "export: {formats: [fp16, stream]}",
            "export.formats (line 3): lacks fp32, the one-piece model that stream is held against",
        ),
        (BARS + "export: {formats: [fp32, fp32]}", "export.formats (line 3): named twice: fp32; allowed: each name once"),
    ],
)
def test_contradictions(tmp_path: Path, text: str, message: str) -> None:
    first, second = refusal(tmp_path, text)
    assert first == "1 error"
    assert second.strip().startswith(message)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("epochs", "(command line): found 'epochs'; allowed: key=value"),
        ("=3", "(command line): found '=3'; allowed: key=value"),
        ("train.epoch=3", "train.epoch (command line): unknown key; did you mean train.epochs?"),
        ("epochs=3", "epochs (command line): unknown key; did you mean train.epochs or quant.qat.epochs or quant.prune.epochs?"),
        ("name.x=3", "name.x (command line): unknown key; name has no options below it"),
        ("train=3", "train (command line): found '3'; allowed: null, or a value for one of train.precision, train.epochs, "),
        ("train.epochs=[", "train.epochs (command line): found '['; allowed: a whole number, at least 1, at most 1000000"),
        ("train.epochs=!!int x", "train.epochs (command line): found '!!int x'; allowed: a whole number, at least 1, at most 1000000"),
        ("name=", "name (command line): found ''; allowed: text, matching ^[A-Za-z0-9][A-Za-z0-9._-]*$"),
        ("data.season=3", "data.season (command line): is no option of data.kind bars; allowed: path, lookback, "),
        ("quant.qat.lr=1e-5", "quant.qat (command line): has no effect while quant.method is none; "),
    ],
)
def test_wrong_overrides(tmp_path: Path, override: str, message: str) -> None:
    first, second = refusal(tmp_path, BARS, override)
    assert first == "1 error"
    assert second.strip().startswith(message)


def test_an_override_stands_once(tmp_path: Path) -> None:
    assert refusal(tmp_path, BARS, "seed=1", "seed=2") == ["1 error", "  seed (command line): stands twice; allowed: once"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("quant.prune=null", "quant.prune.keep=3"),
        ("quant=null", "quant.qat.lr=1e-5"),
        ("train.optimizer.groups={lstm: 1e-4}", "train.optimizer.groups.lstm.*=1e-5"),
    ],
)
def test_overrides_of_one_branch_contradict_each_other_in_either_order(tmp_path: Path, first: str, second: str) -> None:
    for one, other in ((first, second), (second, first)):
        key, against = one.split("=")[0], other.split("=")[0]
        row = f"  {against} (command line): contradicts {key} on the command line; allowed: the one or the other"
        assert row in refusal(tmp_path, f"{BARS}quant: {{method: qat}}", one, other)


def test_every_override_that_another_contradicts_is_named(tmp_path: Path) -> None:
    (_, row) = refusal(tmp_path, BARS, "train.schedule.warmup=0.1", "train.epochs=2", "train=null", "seed=null")
    assert row.startswith("  train (command line): contradicts train.epochs, train.schedule.warmup on the command line")


def test_an_override_below_no_mapping_leaves_the_word_to_the_file(tmp_path: Path) -> None:
    assert refusal(tmp_path, BARS + "train: 5", "train.optimizer.lr=1")[1].startswith("  train (line 3): found 5; allowed: a mapping ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found an empty file; allowed: a mapping of options, as `name: first_run`"),
        ("# nothing\n", "found an empty file; allowed: a mapping of options, as `name: first_run`"),
        ("- a\n", "found a list; allowed: a mapping of options, as `name: first_run`"),
        ("a: [", "line 1, column 5: not YAML: expected the node content, but found '<stream end>'"),
        ("a:\n\t- b", "line 2, column 1: not YAML: found character '\\t' that cannot start any token"),
        ("a: 1\n---\nb: 2", "line 2, column 1: not YAML: but found another document"),
        ("? [a]\n: b", "line 1, column 3: a list or mapping is no key; allowed: text"),
        ("a: !!python/object:os.x {}", "line 1, column 4: tags such as tag:yaml.org,2002:python/object:os.x are not supported"),
        ("a: !!int x", "line 1, column 4: tags such as tag:yaml.org,2002:int are not supported; write the plain value"),
        ("a: !!timestamp x", "line 1, column 4: tags such as tag:yaml.org,2002:timestamp are not supported; write the plain value"),
        ("a: &a [x]\nb: *a", "line 1, column 4: anchors and aliases are not supported; write the value out"),
        ("a: *b", "line 1, column 4: anchors and aliases are not supported; write the value out"),
        ("a: " + 60 * "[" + 60 * "]", "line 1, column 53: nested deeper than 50 levels"),
        ("a: " + 100_000 * "x", "100,003 characters; allowed: at most 100,000"),
        ("a: " + 5000 * "9", "line 1, column 4: a whole number of 5,000 characters; allowed: at most 100"),
        ("a: 0x" + 5000 * "f", "line 1, column 4: a whole number of 5,002 characters; allowed: at most 100"),
        ('a: "\\UFFFFFFFF"', "not YAML: "),
        ("0x_", "found a str; allowed: a mapping"),
        ("a: \x00", "not YAML: unacceptable character #x0000: special characters are not allowed"),
        (b"name: \xff", "byte 6 is not UTF-8; save the file as UTF-8"),
    ],
)
def test_files_that_are_no_recipe(tmp_path: Path, text: str | bytes, message: str) -> None:
    assert refusal(tmp_path, text)[0].startswith(message)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"missing\.yaml: cannot be read: No such file or directory"):
        load_recipe(tmp_path / "missing.yaml")
    with pytest.raises(RecipeError, match=r"cannot be read: Is a directory"):
        load_recipe(tmp_path)


@pytest.mark.parametrize("text", ["a: &a {b: *a}", "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]"])
def test_aliases_are_never_expanded(tmp_path: Path, text: str) -> None:
    assert "line 3, column 4: anchors and aliases are not supported" in refusal(tmp_path, BARS + text)[0]


def test_a_byte_order_mark_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_bytes(b"\xef\xbb\xbf" + BARS.encode())
    assert load_recipe(tmp_path / "recipe.yaml").name == "first"
