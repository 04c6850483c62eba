# SPDX-License-Identifier: Apache-2.0
"""The one strict reader of what environments, data sets, servers and run files say; imports neither torch nor verl.

A truth value is a bool, numpy's bool, the number 0 or 1, or an array, tensor, list or tuple of one of these. A number is
a real number or a truth value, or one element of these. Whatever else is given (``"False"``, None, a list of two) is a
`ProtocolError` that names the field, the value and its type: Python's own ``bool()`` holds ``[False]`` and ``"False"`` for true.
"""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np


class ProtocolError(TypeError, ValueError):
    """Somebody else's value is not what its field holds."""


def read_bool(value: Any, field: str) -> bool:
    """The truth value of ``field``."""
    one = _only_element(value)
    if isinstance(one, bool | np.bool_):
        return bool(one)
    if isinstance(one, numbers.Real) and one in (0, 1):
        return bool(one)
    raise ProtocolError(f"{field}={_shown(value)}: expected True or False (or 0, 1, or an array of one of these).")


def read_number(value: Any, field: str) -> float:
    """The finite number of ``field``."""
    one = _only_element(value)
    if not isinstance(one, bool | np.bool_ | numbers.Real):
        raise ProtocolError(f"{field}={_shown(value)}: expected a number (or an array of one).")
    number = float(one)
    if not math.isfinite(number):
        raise ProtocolError(f"{field} is {number} of type {type(value).__name__}: it must be finite.")
    return number


def read_bools(values: Sequence[Any], field: Callable[[int], str]) -> list[bool]:
    """The truth values of a column; ``field(place)`` names one in an error. Plain bools are taken at once."""
    if set(map(type, values)) <= {bool, np.bool_}:
        return np.asarray(values, dtype=bool).tolist()
    return [read_bool(value, field(place)) for place, value in enumerate(values)]


def read_numbers(values: Sequence[Any], field: Callable[[int], str]) -> list[float]:
    """The finite numbers of a column; ``field(place)`` names one in an error. Plain numbers are taken at once."""
    if set(map(type, values)) <= {float, int, np.float32, np.float64}:
        column = np.asarray(values, dtype=np.float64)
        if np.isfinite(column).all():
            return column.tolist()
    return [read_number(value, field(place)) for place, value in enumerate(values)]


def read_whole(value: Any, field: str) -> int:
    """The whole number of ``field``; 7.0 is one (a column with gaps is of floats), True and "7" are none."""
    one = _only_element(value)
    number = float(one) if isinstance(one, numbers.Real) and not isinstance(one, bool | np.bool_) else math.nan
    if not number.is_integer():
        raise ProtocolError(f"{field}={_shown(value)}: expected a whole number (or an array of one).")
    return int(one)


def read_texts(value: Any, field: str) -> tuple[str, ...]:
    """The texts of ``field``: any iterable of str, read once; None is no text at all."""
    if value is None:
        return ()
    if isinstance(value, np.ndarray):
        value = value.ravel().tolist()
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise ProtocolError(f"{field}={_shown(value)} that is not a list of str.")
    texts = tuple(sorted(value, key=repr) if isinstance(value, set | frozenset) else value)
    other = next((text for text in texts if not isinstance(text, str)), None)
    if other is not None or None in texts:
        raise ProtocolError(f"{field} holds {_shown(other)}, so it is something that is not a list of str.")
    return tuple(str(text) for text in texts)


def _only_element(value: Any) -> Any:
    """The element of an array, tensor, list or tuple of one, however deep; anything else as it is."""
    torch = sys.modules.get("torch")  # whoever hands over a tensor has imported it
    if isinstance(value, np.ndarray) or (torch is not None and isinstance(value, torch.Tensor)):
        value = value.tolist()
    while isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} of type {type(value).__name__}"
