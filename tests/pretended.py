"""A device, "sim", that is not there: torch takes it for an accelerator, and its operations run on the CPU.

What goes wrong on a GPU goes wrong here. Tensors of two devices do not mix, unless the other one is a number, and
nobody but the device reads its memory. What would make the host wait is counted, with the line that asked for it:
values that are read (`item`, `tolist`, `bool`, copies to the CPU), shapes that depend on values (`nonzero`, boolean
indices, `unique`) and copies from the host that are not `non_blocking`. Operations that would start kernels are counted
too; views would not.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import backend_registration
from torch.utils._pytree import tree_leaves, tree_map_only

NAME = "sim"

T = TypeVar("T")

_PACKAGE = str(Path(__file__).parents[1] / "asterism")
_COPIES = {"copy_", "_to_copy", "_copy_from", "_foreach_copy_"}
_READS = {
    *("_local_scalar_dense", "nonzero", "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive"),
    *("equal", "isin", "bincount", "_linalg_eigh", "_linalg_svd", "linalg_lstsq"),
}
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
# Torch makes these by writing into an empty tensor that grows, which this device's tensors cannot.
_FACTORIES = "arange arange.start arange.start_step linspace eye eye.m randperm randperm.generator"
_NO_KERNELS = {"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "lift_fresh"}
# What autocast does on CUDA, by operation: arithmetic of matrices in half precision, sums and exponentials in full.
_HALF = "linear matmul mm bmm addmm baddbmm addbmm mv conv2d convolution scaled_dot_product_attention prelu"
_FULL = (
    "exp expm1 log log1p log2 pow.Tensor_Scalar pow.Tensor_Tensor rsqrt reciprocal softmax.int log_softmax.int cumsum "
    "layer_norm group_norm norm.Scalar norm.ScalarOpt_dim prod sum sum.dim_IntList mse_loss l1_loss smooth_l1_loss "
    "cosine_similarity cdist binary_cross_entropy_with_logits nll_loss kl_div linalg_vector_norm softplus"
)


@dataclass
class Count:
    """What happened on the device."""

    launches: Counter[str] = field(default_factory=Counter)  # by operation
    waits: Counter[str] = field(default_factory=Counter)  # by operation and line of the package


_counts: list[Count] = []


@contextlib.contextmanager
def counted() -> Iterator[Count]:
    """Count what happens in here."""
    _counts.append(Count())
    try:
        yield _counts[-1]
    finally:
        _counts.pop()


def moved(value: T, device: str = NAME) -> T:
    """A module, a batch, or other tensors in data classes, lists and tuples, on a device."""
    if isinstance(value, Tensor | nn.Module):
        return value.to(device)
    if isinstance(value, tuple | list):
        return type(value)(moved(each, device) for each in value)
    if is_dataclass(value) and not isinstance(value, type):  # a batch's keys stay on the host
        names = [each.name for each in fields(value) if each.name != "keys"]
        return replace(value, **{name: moved(getattr(value, name), device) for name in names})
    return value


class Pretended(Tensor):
    """A tensor on the device: shape and place for torch, and values that only the device touches."""

    values: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values: Tensor) -> Pretended:
        made = Tensor._make_wrapper_subclass(
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=torch.device(NAME, 0),
        )
        made.values = values
        return made

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(op, *args, **(kwargs or {}))

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __repr__(self, **options: Any) -> str:
        return f"{NAME}({self.values!r})"


def _run(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operation whose arguments, or whose result, are on the device."""
    name = op._schema.name.removeprefix("aten::")
    foreign = [each for each in tree_leaves((args, kwargs)) if _is_foreign(each)]
    if name not in _COPIES and any(each.ndim for each in foreign):
        raise RuntimeError(f"{name}: all tensors must be on {NAME}, but one is on {foreign[0].device}")
    target = kwargs.get("device")
    to_host = torch.device(target).type == "cpu" if target is not None else name in _COPIES and _is_foreign(args[0])
    if _counts:
        _count(op, name, args, kwargs, crosses=name in _COPIES and (to_host or bool(foreign)))
    if target is not None:
        kwargs |= {"device": torch.device("cpu")}
    kwargs.pop("pin_memory", None)
    args_, kwargs_ = tree_map_only(Pretended, lambda each: each.values, (args, kwargs))
    result = op(*args_, **kwargs_)
    returns = op._schema.returns
    written = [_argument(op, place, args, kwargs) for place in _written(op)]
    if returns and all(each.alias_info is not None and each.alias_info.is_write for each in returns):
        return written[0] if len(returns) == 1 else tuple(written)
    return result if to_host else tree_map_only(Tensor, Pretended, result)


def _is_foreign(value: Any) -> bool:
    return isinstance(value, Tensor) and not isinstance(value, Pretended)


def _count(op: Any, name: str, args: Any, kwargs: Any, crosses: bool) -> None:
    waits = name in _READS
    if name in _INDEXING:
        fills = name != "index" and args[2].numel() == 1 and not (len(args) > 3 and args[3])  # a masked fill
        waits = not fills and any(each is not None and each.dtype == torch.bool for each in args[1])
    if name == "repeat_interleave":
        waits = kwargs.get("output_size") is None
    if crosses:
        waits = not kwargs.get("non_blocking", name != "_to_copy" and len(args) > 2 and args[2])
    makes_view = any(each.alias_info is not None and not each.alias_info.is_write for each in op._schema.returns)
    for count in _counts:
        count.launches[name] += not makes_view and name not in _NO_KERNELS
        if waits:
            count.waits[f"{name}, {_line()}"] += 1


def _line() -> str:
    """The innermost line of the package."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_filename.startswith(_PACKAGE):
            return f"{frame.f_code.co_filename.removeprefix(_PACKAGE)}:{frame.f_lineno}"
    return "backward"


def _written(op: Any) -> list[int]:
    aliases = [argument.alias_info for argument in op._schema.arguments]
    return [place for place, alias in enumerate(aliases) if alias is not None and alias.is_write]


def _argument(op: Any, place: int, args: Any, kwargs: Any) -> Any:
    return args[place] if place < len(args) else kwargs.get(op._schema.arguments[place].name)


def _copy(source: Tensor, goal: Tensor, non_blocking: bool = False) -> Tensor:
    return _run(torch.ops.aten.copy_.default, goal, source, non_blocking)


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **options: Any) -> Tensor:
    return Pretended(torch.empty_strided(size, stride, dtype=dtype))


def _cast(op: Any, dtype: Callable[[], torch.dtype]) -> Callable[..., Any]:
    """The operation with its floating tensors in another precision, while autocast is on."""

    def called(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)):
            goal = dtype()
            return op(*_floats(args, goal), **_floats(kwargs, goal))

    return called


def _floats(values: Any, goal: torch.dtype) -> Any:
    castable = torch.float16, torch.bfloat16, torch.float32
    return tree_map_only(Tensor, lambda each: each.to(goal) if each.dtype in castable else each, values)


class _Module:
    """What torch and Fabric ask of a backend."""

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Any] = {
            "is_initialized": True,
            "is_available": True,
            "current_device": 0,
            "device_count": 1,
            "_is_in_bad_fork": False,
            "get_amp_supported_dtype": [torch.bfloat16, torch.float16],
        }
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments: answers.get(name)


def _op(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _register() -> list[torch.library.Library]:
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    fallback, aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    fallback.fallback(_run, "PrivateUse1")
    fallback.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    aten.impl("empty_strided", _empty_strided, "PrivateUse1")  # these two for `torch.tensor`, which bypasses the rest
    aten.impl("_copy_from", _copy, "PrivateUse1")
    for name in _FACTORIES.split():
        aten.impl(name, functools.partial(_run, _op(name)), "PrivateUse1")
    for names, dtype in ((_HALF, lambda: torch.get_autocast_dtype(NAME)), (_FULL, lambda: torch.float32)):
        for name in names.split():
            aten.impl(name, _cast(_op(name), dtype), "AutocastPrivateUse1")
    return [fallback, aten]


_libraries = _register()
