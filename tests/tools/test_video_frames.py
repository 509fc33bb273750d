"""Videos from strangers: read by the reader of their suffix, never by what their content asks for."""

from pathlib import Path

import numpy as np
import pytest
import torch

from asterism.errors import UserError
from asterism.tools.predict import VIDEO_SUFFIXES, frame_count, video_frames

av = pytest.importorskip("av", reason="needs the extra: pip install 'asterism[video]'")
_CODECS = {".webm": "libvpx", ".mpg": "mpeg1video", ".mpeg": "mpeg1video"}


def write_video(path: Path) -> Path:
    with av.open(str(path), "w") as container:
        stream = container.add_stream(_CODECS.get(path.suffix, "mpeg4"), rate=25)
        stream.width, stream.height, stream.pix_fmt = 32, 16, "yuv420p"
        for level in (40, 90, 140):
            frame = av.VideoFrame.from_ndarray(np.full((16, 32, 3), level, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


@pytest.mark.parametrize("suffix", VIDEO_SUFFIXES)
def test_every_suffix_is_read(suffix: str, tmp_path: Path) -> None:
    path = write_video(tmp_path / f"film{suffix}")
    frames = list(video_frames(path))
    assert [tuple(frame.shape) for frame in frames] == [(3, 16, 32)] * 3
    assert torch.stack(frames).float().mean(dim=(1, 2, 3)).sub(torch.tensor([40, 90, 140])).abs().max() < 8
    assert frame_count(path) >= 1


@pytest.mark.parametrize(
    "content",
    [
        "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nsecret.mp4\n#EXT-X-ENDLIST\n",
        "#EXTM3U\n#EXTINF:1,\nhttp://attacker.example/a.mp4\n",
        "ffconcat version 1.0\nfile secret.mp4\n",
    ],
    ids=["playlist", "address", "list of files"],
)
def test_lists_of_other_files_are_refused(content: str, tmp_path: Path) -> None:
    write_video(tmp_path / "secret.mp4")
    (tmp_path / "film.mp4").write_text(content)
    with pytest.raises(UserError, match="is not a video that can be opened"):
        list(video_frames(tmp_path / "film.mp4"))
