"""What is kept of an exception: its type's name, its message and its traceback, as bounded text that can be stored."""

from __future__ import annotations

import traceback

_MESSAGE, _TRACEBACK = 4_000, 16_000  # characters
_FRAMES = -50  # the last ones: nearest to where it was raised


def describe(error: BaseException) -> dict[str, str]:
    """Return type, message and traceback as text; an exception that cannot be printed is named all the same."""
    return {
        "type": _clean(type(error).__qualname__, 200),
        "message": _clean(_message(error), _MESSAGE),
        "traceback": _clean(_traceback(error), _TRACEBACK),
    }


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as failure:  # noqa: BLE001 - user code: __str__ may raise anything
        return f"<its message cannot be read: {type(failure).__name__}>"


def _traceback(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error, limit=_FRAMES))
    except BaseException:  # noqa: BLE001 - user code: __repr__ and __str__ of anything in the chain
        return "".join(traceback.format_tb(error.__traceback__, limit=_FRAMES))


def _clean(text: str, most: int) -> str:
    """Make NUL and lone surrogates visible, and keep the ends of what is too long: the cause stands last."""
    text = text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
