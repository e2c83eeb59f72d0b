import asyncio
import contextlib

import pytest

from serving.grpc_api.receiving import uncancelled


async def read(future, log):
    """Coroutine like gRPC's reads: it takes its result from elsewhere once a future is done."""
    await future
    log.append("read")
    return future.result()


@pytest.mark.parametrize("steps", [1, 3])
def test_the_result_is_returned(steps):
    """The result of the coroutine is returned for any number of futures, done before or later."""

    async def several(futures):
        return [await future for future in futures]

    async def run():
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in range(steps)]
        futures[0].set_result(0)
        for number, future in enumerate(futures[1:], 1):
            loop.call_later(0.01 * number, future.set_result, number)
        return await uncancelled(several(futures))

    assert asyncio.run(run()) == list(range(steps))


def test_errors_are_raised():
    """Errors of the coroutine, and errors that it awaits, are raised."""

    async def run():
        future = asyncio.get_running_loop().create_future()
        future.set_exception(KeyError("lost"))
        await uncancelled(read(future, []))

    with pytest.raises(KeyError, match="lost"):
        asyncio.run(run())


@pytest.mark.parametrize("outcome", ["result", "error"])
def test_cancelling_does_not_cancel_the_coroutine(outcome):
    """Cancelling ends the caller immediately, while the future and the coroutine end by themselves."""

    async def run():
        future, log = asyncio.get_running_loop().create_future(), []
        waiting = asyncio.create_task(uncancelled(read(future, log)))
        await asyncio.sleep(0)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        assert waiting.cancelled()
        assert not future.done()
        future.set_exception(OSError()) if outcome == "error" else future.set_result(1)
        await asyncio.sleep(0.01)
        return log

    assert asyncio.run(run()) == (["read"] if outcome == "result" else [])


def test_coroutine_without_awaits_returns_immediately():
    """A coroutine that awaits nothing returns immediately."""

    async def at_once():
        return 7

    assert asyncio.run(uncancelled(at_once())) == 7
