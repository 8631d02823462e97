"""Which execution provider of ONNX Runtime computes how many nodes of a graph, in a few words."""

from collections.abc import Mapping


def nodes_in_words(nodes: Mapping[str, Mapping[str, int]]) -> str:
    """As "all 212 on CPU", or "CUDA 180; CPU 12: Concat × 7, Gather × 5", the most first and what the others compute by name.

    Args:
        nodes: provider -> operator -> nodes.
    """
    counts = sorted(((sum(operators.values()), provider) for provider, operators in nodes.items()), reverse=True)
    short = {provider: provider.removesuffix("ExecutionProvider") for provider in nodes}
    if len(counts) == 1:
        (count, provider), *_ = counts
        return f"all {count} on {short[provider]}"
    (count, provider), *others = counts
    rest = [f"{short[other]} {few}: {_operators(nodes[other])}" for few, other in others]
    return "; ".join([f"{short[provider]} {count}", *rest])


def _operators(counts: Mapping[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    return ", ".join(name if count == 1 else f"{name} × {count}" for name, count in ordered)
