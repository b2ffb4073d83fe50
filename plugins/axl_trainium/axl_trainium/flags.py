"""Flags of Neuron's compiler, which it reads from the environment."""

from collections.abc import Mapping

from axcore.plugins import Hardware


def transformer_training(hardware: Hardware) -> Mapping[str, str]:
    """Returns the flags that say what is compiled: a large language model that is trained.

    Source: "Neuron Compiler CLI Reference Guide" in AWS's documentation. Not yet tried on a device.
    """
    return {"--model-type": "transformer", "--distribution-strategy": "llm-training"}
