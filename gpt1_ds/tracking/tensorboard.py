"""TensorBoard's end of its sink: event files in `<run>/tensorboard`, one for each segment, steps as the x axis."""

from __future__ import annotations

import json
import time
from typing import IO, Any

from gpt1_ds.tracking import worker


class TensorboardSegment:
    """From one start of a run to its end."""

    def __init__(self, start: dict[str, Any], _people: IO[str]) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.writer = EventFileWriter(start["folder"])
        self._text("config", f"```\n{start['config']}\n```")

    def rewind(self, step: int) -> None:
        """TensorBoard drops what it has after `step`."""
        from tensorboard.compat.proto.event_pb2 import SessionLog

        self._add(step=step + 1, session_log=SessionLog(status=SessionLog.START))

    def log(self, values: dict[str, float], step: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        named = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._add(step=step, summary=Summary(value=named))
        self.writer.flush()

    def finish(self, summary: dict[str, Any], failed: bool) -> None:
        self._text("summary", f"```\n{json.dumps({**summary, 'failed': failed}, indent=1)}\n```")
        self.writer.close()

    def _text(self, tag: str, text: str) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING

        tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()])
        shown = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        self._add(step=0, summary=Summary(value=[Summary.Value(tag=tag, metadata=shown, tensor=tensor)]))

    def _add(self, **event: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self.writer.add_event(Event(wall_time=time.time(), **event))


if __name__ == "__main__":
    worker.run("TensorBoard", TensorboardSegment)
