"""Weights from the network: from the local cache, or from a server that answers within seconds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from asterism.errors import UserError

PREFIX = "hf:"  # before the name of a model on the Hugging Face hub

TEXT_INSTEAD = "train our own tower with --text own (published ones need pip install 'asterism[text]')"

_PATIENCE = 3.0  # seconds until the server counts as unreachable
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")
_OPEN_CLIP_WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
_OTHERS = ("config.json", "preprocessor_config.json", "processor_config.json", "model-*.safetensors")


def hub_folder(name: str) -> Path:
    """The local folder of a model of the Hugging Face hub, downloaded if it is not in the cache."""
    cached = cached_file(name) if name.count("/") == 1 else None
    return _downloaded(name, [*_WEIGHTS, *_OTHERS]) if cached is None else cached.parent


def hub_text_folder(name: str) -> Path:
    """The local folder of a text model of the hub, with its tokenizer, downloaded if it is not in the cache."""
    wanted = [*_WEIGHTS, *_OPEN_CLIP_WEIGHTS, "*.json", "*.txt", "*.model", "model-*.safetensors"]
    return _downloaded(name, wanted, TEXT_INSTEAD)


def _downloaded(name: str, wanted: list[str], instead: str = "start without pretrained weights") -> Path:
    from huggingface_hub import snapshot_download

    if name.count("/") != 1:
        raise UserError(
            f"{PREFIX}{name} does not name a model of the Hugging Face hub; write {PREFIX}ORGANISATION/MODEL"
        )
    with without_retries():
        try:
            return Path(snapshot_download(name, allow_patterns=wanted))
        except Exception as error:  # its HTTP library has exceptions of its own
            raise not_downloaded(f"{PREFIX}{name}", error, instead) from None


def cached_file(repository: str, names: tuple[str, ...] = _WEIGHTS) -> Path | None:
    """The first of these files of a model of the hub that is in the local cache."""
    from huggingface_hub import try_to_load_from_cache

    name, _, revision = repository.partition("@")
    found = (try_to_load_from_cache(name, each, revision=revision or None) for each in names)
    return next((Path(path) for path in found if isinstance(path, str)), None)


@contextlib.contextmanager
def from_the_cache_only() -> Iterator[None]:
    """Nothing is fetched inside this block: a file may not choose what is downloaded."""
    try:
        from huggingface_hub import constants
    except ImportError:  # then nothing could be fetched
        yield
        return
    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


@contextlib.contextmanager
def without_retries(*, cached: bool = False) -> Iterator[None]:
    """Use only the cache inside this block if the weights are in it, or if the server does not answer.

    The hub's package repeats a failed request for every file, for up to two minutes.
    """
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or cached or not _answers(str(constants.ENDPOINT))
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _answers(server: str) -> bool:
    from huggingface_hub import get_session

    try:
        get_session().head(server, timeout=_PATIENCE)
    except Exception:  # of the HTTP library, which differs between versions of the hub's package
        return False
    return True


def not_downloaded(name: str, error: Exception, instead: str = "start without pretrained weights") -> UserError:
    from huggingface_hub import constants

    reason = (str(error) or type(error).__name__).splitlines()[0]
    if type(error).__name__ in ("LocalEntryNotFoundError", "OfflineModeIsEnabled"):
        reached = "cannot be reached, or must not be asked for what a file names"
        reason = f"they are not in the local cache, and {constants.ENDPOINT} {reached}"
    return UserError(
        f"the published weights of {name!r} could not be downloaded: {reason}; download them on another machine and "
        f"give the file or folder, or {instead}"
    )
