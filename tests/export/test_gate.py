"""How the checks of the gate are reported."""

from tftq.export.gate import Check, table


def test_the_table_by_hand() -> None:
    checks = [Check("short", 0.25, "<= 1", True), Check("a longer name", 3.0, "== 0", False)]
    assert table(checks) == "  ok      short          0.25  (allowed <= 1)\n  FAILED  a longer name  3  (allowed == 0)"
