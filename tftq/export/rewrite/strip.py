"""Strip the tracer's notes."""

import onnx

from tftq.export.rewrite.nodes import every_graph


def strip(model: onnx.ModelProto) -> None:
    """Remove the tracer's notes, in place: they are a third of a small file, and contain paths of the machine."""
    model.doc_string = ""
    del model.metadata_props[:]
    for whole in every_graph(model.graph):
        del whole.value_info[:]
        for part in (*whole.node, *whole.initializer, *whole.input, *whole.output, whole):
            part.doc_string = ""
            del part.metadata_props[:]
