"""What runs for each frame calls no Python, but where the lines say so."""

from pathlib import Path

import pytest

from tests.cases import each
from tests.tools.python_calls import lines_with_calls

SILENT: dict[str, tuple[str, ...]] = {
    "header": (
        "is_known", "is_flexible", "skip_uvarint", "uvarint_at", "skip_tags", "after_client_id", "acks_at",
        "least_header", "least_of", "peek", "token_size",
    ),
    "account": ("is_scarce", "is_full", "charge", "try_charge", "record", "close"),
    "connection_state": (
        "enqueue", "dequeue", "advance", "has_ended", "reads_tokens", "keeps_rest", "is_closing",
        "has_no_partial_request", "end_frame", "await_end", "release", "read_token", "read_token_response", "chunk",
        "settle",
    ),
    "session": ("is_saturated", "read", "check_size"),
    "observation": ("identifies", "flags", "try_charge", "drop_body", "uncharge", "record_lost"),
    "produce_scan": (
        "reads_on", "element", "next_partition", "next_topic", "after_tags", "number", "length",
    ),
}  # fmt: skip
"""Functions that call no Python at all, by module of ``proxy.core``."""

OTHERS: dict[str, dict[str, list[str]]] = {
    "connection_state": {
        "begin_body": [
            "capture = BodyCapture(stop - first, False, False)",
            "observation.add_piece(response, exchange, kind, capture, lead, lead, 0, -first, False)",
        ],
        "read_body": ["self.interception.replace(state.frame.feed(whole[:taken], last), whole, 0, taken)"],
        "interceptor_flags": ["return self.interception.interceptors.flags(key, version)"],
    },
    "session": {
        "read_frames": [
            "carry += sliced(data, pos, grown)",
            "carry += sliced(data, pos, end)",
            "frames += answer_cost if (self.touched or self.pending) and not self.interception.is_unchanged else 1",
        ],
        "read_request": [
            'client_id = raw.decode("utf-8", "replace")',
            'self.client_id = client_id if id_length <= max_name else shorten(raw).decode("utf-8", "replace")',
            "most = self.interception.interceptors.max_held_request(key, version)",
            "scan = ProduceScan(version, self.topics)",
            "request = Request(connection, key, version, client_id, acks, self.consecutive)",
            "frame = self.interception.refuse_produce(request, exchange, acks_offset - at)",
        ],
        "read_response": ['self.interception.record_failure(ValueError("the response\'s header cannot be read"))'],
    },
    "observation": {
        "read_piece": ['self.track_principal("passed", (now,))'],
        "add_piece": ["self.pieces.append(piece)"],
        "record": ["self.subscribers.record(exchange)"],
    },
}
"""Lines of other functions of the hot path that do: where a header came in parts, an interceptor has a say, a client id
changed, or an exchange is handed over."""


@pytest.mark.promise("performance.md", "What runs for each frame is compiled and calls no Python.")
@pytest.mark.slow
@each("module", SILENT)
def test_what_runs_for_each_frame_calls_no_python(module: str, tmp_path: Path) -> None:
    found = lines_with_calls(f"proxy/core/{module}", tmp_path)
    assert {name: found[name] for name in SILENT[module] if found[name]} == {}
    assert {name: found[name] for name in OTHERS.get(module, {})} == OTHERS.get(module, {})
