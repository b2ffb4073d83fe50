"""A run over a stream that is stopped and taken up again is the run that was never stopped."""

import signal

import pytest

from axcore.config import evolve
from axcore.data import FileStream, StreamData
from axcore.trainer import StepsDone


@pytest.mark.slow
def test_a_run_over_a_stream_resumes_to_the_same_bits(toy_config, one_device, same_bits, tmp_path):
    stream = FileStream.Config(source=toy_config.data.source)
    data = StreamData.Config(stream=stream, seq_len=16, batch_size=8, validation_fraction=0.1)
    trainer = one_device(evolve(toy_config, data=evolve(data, validation_batches=2)))

    def stop(event):
        if isinstance(event, StepsDone) and event.step == 7:
            signal.raise_signal(signal.SIGINT)

    whole = trainer.run(tmp_path / "whole")
    assert trainer.run(tmp_path / "run", [stop], returns_when_stopped=True).step == 7
    resumed = trainer.run(tmp_path / "run")
    assert (resumed.step, resumed.is_complete) == (12, True)
    assert same_bits(resumed.state, whole.state)
    assert resumed.validation == whole.validation
