"""A LLaVA that was trained here from random weights is one of transformers."""

import jax.numpy as jnp
import numpy as np
import pytest

pytestmark = pytest.mark.parity


def test_a_run_that_was_stopped_and_resumed_is_exported_with_its_logits(tmp_path):
    import torch
    import transformers
    from axl_vision.experiments import digits_chat
    from picture_parity import soft_rows

    from axcore.config import update_config
    from axcore.module import functional
    from axcore.runs import export_run, load_run
    from axcore.testing import trainer_on

    changes = {"data.batch_size": 16, "data.validation_batches": 1, "checkpoint.every_steps": 2}
    for steps in (2, 4):
        cfg = update_config(digits_chat(), {**changes, "max_steps": steps})
        trainer_on(cfg, 1).run(tmp_path / "run", quiet=True)
    run = load_run(tmp_path / "run")
    assert run.step == 4
    export_run(run, tmp_path / "exported")

    hf = transformers.LlavaForConditionalGeneration.from_pretrained(tmp_path / "exported").eval()
    mark, random = hf.config.image_token_index, np.random.default_rng(0)
    tokens = np.array([[256, *[mark] * 16, *b"Which digit?"]])
    image = random.integers(0, 255, (1, 16, 16, 3), np.uint8)
    pixels = transformers.CLIPImageProcessor(
        size={"height": 16, "width": 16}, do_center_crop=False
    )(list(image), return_tensors="pt")["pixel_values"]
    wanted = hf(input_ids=torch.tensor(tokens), pixel_values=pixels).logits.detach().numpy()
    rows = soft_rows(tokens, mark)
    inputs = jnp.asarray(image)
    own, _ = functional(run.model, run.state, rows, inputs=inputs, method="logits")
    np.testing.assert_allclose(own, wanted, rtol=1e-4, atol=2e-5)
