"""Is a watcher that is given every second look of a quicker sampler taken to be blind? It is not."""

from eagle3ops.watchdog.judge.watch import Watch


def test_half_of_the_looks_are_enough() -> None:
    watch = Watch("it")
    for second in range(30):
        # A little later than a second after the one before, as it goes.
        at = 100.0 + second * 1.0004
        process = {"pid": 7, "ppid": 1, "name": "python", "start": 50.0, "state": "S", "cpu_s": 1.0}
        watch.sample({"mono": at, "interval_s": 0.5, "gap_s": 0.5, "late": False, "procs": [process]}, frozenset({7}))
        reading = watch.judge(at)
        assert not any("nobody looked" in signal.words for signal in reading.signals), (second, reading)
