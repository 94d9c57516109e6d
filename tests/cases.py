"""A table of cases in one test."""

import inspect
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any


def each(names: str | tuple[str, ...], cases: Collection[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Have a test called with each of ``cases``, one after the other; a failure names its case. Fixtures are those of
    the whole test."""

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        def given() -> Iterator[dict[str, Any]]:
            assert cases
            for case in cases:
                yield {names: case} if isinstance(names, str) else dict(zip(names, case, strict=True))

        def run(*own: Any, **fixtures: Any) -> None:
            for one in given():
                with named(one):
                    test(*own, **fixtures, **one)

        async def run_async(*own: Any, **fixtures: Any) -> None:
            for one in given():
                with named(one):
                    await test(*own, **fixtures, **one)

        made: Any = run_async if inspect.iscoroutinefunction(test) else run
        for name in ("__name__", "__qualname__", "__module__", "__doc__", "pytestmark"):
            if hasattr(test, name):
                setattr(made, name, getattr(test, name))
        signature = inspect.signature(test)
        taken = (names,) if isinstance(names, str) else names
        made.__signature__ = signature.replace(
            parameters=[one for one in signature.parameters.values() if one.name not in taken]
        )
        return made  # type: ignore[no-any-return]

    return decorate


@contextmanager
def named(case: object) -> Iterator[None]:
    """Have a failure say in which case it was."""
    try:
        yield
    except Exception as error:
        error.add_note(f"case: {case}")
        raise
