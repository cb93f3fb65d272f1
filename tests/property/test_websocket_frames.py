"""Frames cut by hand and frames cut by the protocol engine of the `websockets` library are the same frames."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from omnirelay.transport.websocket_frames import FrameReader, MaskedFrames, plain_frame

SIZE_MAX = 100_000

payloads = st.one_of(
    st.binary(max_size=200),
    st.sampled_from([125, 126, 127, 65_535, 65_536, SIZE_MAX]).map(lambda size: bytes(range(256)) * (size // 256 + 1)),
).map(lambda data: data[:SIZE_MAX])


@st.composite
def frames(draw: st.DrawFn) -> list[Frame]:
    """What a peer may send: messages whole and in parts, with control frames between and within them."""
    sent: list[Frame] = []
    for _ in range(draw(st.integers(0, 6))):
        opcode = draw(st.sampled_from([Opcode.TEXT, Opcode.BINARY, Opcode.PING, Opcode.PONG]))
        if opcode in (Opcode.PING, Opcode.PONG):
            sent.append(Frame(opcode, draw(st.binary(max_size=125))))
            continue
        parts = draw(st.lists(st.binary(max_size=50), max_size=2))
        if not parts:
            sent.append(Frame(opcode, draw(payloads)))
            continue
        for index, part in enumerate(parts):
            sent.append(Frame(opcode if index == 0 else Opcode.CONT, part, fin=False))
            if draw(st.booleans()):
                sent.append(Frame(Opcode.PING, b"between"))
        sent.append(Frame(Opcode.CONT, b"end"))
    return sent


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    borders = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(borders)]


def engine_of(masked: bool) -> ServerProtocol | ClientProtocol:
    if masked:
        return ServerProtocol(state=State.OPEN, max_size=SIZE_MAX)
    return ClientProtocol(parse_uri("ws://localhost/"), state=State.OPEN, max_size=SIZE_MAX)


@given(frames(), st.lists(st.integers(0, 1 << 20), max_size=8), st.booleans())
def test_every_frame_arrives_once_whatever_the_pieces(sent: list[Frame], cuts: list[int], masked: bool) -> None:
    wire = b"".join(frame.serialize(mask=masked) for frame in sent)
    reader = FrameReader(masked=masked, size_max=SIZE_MAX)
    engine = engine_of(masked)
    seen: list[tuple[bytes, bool]] = []
    for piece in pieces(wire, cuts):
        for part, is_message in reader.take(piece):
            if is_message:
                seen.append((part, True))
                continue
            engine.receive_data(part)
            assert engine.parser_exc is None
            events = engine.events_received()
            assert len(events) == 1, "the engine gets one whole frame at a time"
            assert isinstance(events[0], Frame)
            seen.append((bytes(events[0].data), False))
    assert [data for data, _ in seen] == [bytes(frame.data) for frame in sent]
    whole = [frame.fin and frame.opcode in (Opcode.TEXT, Opcode.BINARY) for frame in sent]
    assert [is_message for _, is_message in seen] == whole


@given(payloads, st.booleans())
def test_what_is_written_is_what_the_engine_reads(data: bytes, binary: bool) -> None:
    opcode = Opcode.BINARY if binary else Opcode.TEXT
    for masked, written in ((False, plain_frame(data, binary)), (True, MaskedFrames().frame(data, binary))):
        engine = engine_of(masked)
        engine.receive_data(written)
        [frame] = engine.events_received()
        assert isinstance(frame, Frame)
        assert (frame.opcode, bytes(frame.data), frame.fin) == (opcode, data, True)
        [(read, is_message)] = FrameReader(masked=masked, size_max=SIZE_MAX).take(written)
        assert (read, is_message) == (data, True)


def test_no_two_messages_have_the_same_mask() -> None:
    frames = MaskedFrames()
    masks = {frames.frame(b"x" * 100, False)[2:6] for _ in range(3_000)}
    assert len(masks) > 2_990


@given(st.sampled_from(["too large", "not masked", "masked"]), st.lists(st.integers(0, 1 << 20), max_size=4))
def test_what_breaks_the_protocol_ends_it_with_everything_behind_it(what: str, cuts: list[int]) -> None:
    masked = what != "masked"
    bad = Frame(Opcode.TEXT, b"x" * (SIZE_MAX + 1 if what == "too large" else 10))
    good = Frame(Opcode.TEXT, b"behind").serialize(mask=masked)
    wire = good + bad.serialize(mask=masked if what == "too large" else not masked) + good
    reader, engine = FrameReader(masked=masked, size_max=SIZE_MAX), engine_of(masked)
    messages = []
    for piece in pieces(wire, cuts):
        for part, is_message in reader.take(piece):
            if is_message:
                messages.append(part)
            else:
                engine.receive_data(part)
    assert messages == [b"behind"]
    assert engine.parser_exc is not None
