"""A model of pictures in both libraries: logits, gradients, and weights there and back."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from axcore.data import with_soft_tokens
from axcore.interop import from_hugging_face, to_hugging_face
from axcore.module import functional


def shaken(model: Any) -> Any:
    """Return a model of transformers none of whose weights is one or zero."""
    import torch

    for one in model.parameters():
        one.data += 0.05 * torch.randn_like(one)
    return model.eval()


def soft_rows(tokens: Any, mark: int) -> Any:
    """Return the tokens as rows have them here: the soft ones numbered."""
    rows = [with_soft_tokens(row, row, mark, 1)[0] for row in tokens]
    return jnp.asarray(np.stack(rows), jnp.int32)


def check_is_the_same(
    hf: Any,
    logits_of: Callable[[Any, Any], Any],
    pixels: Any,
    rows: Any,
    folder: Path,
    *,
    sized: Callable[[Any], Any] = lambda cfg: cfg,
    near: float = 2e-5,
    floor: float = 1e-6,
    saved: Callable[[Path], None] = lambda folder: None,
) -> Any:
    """Check logits and all gradients, and that an export gives exactly the logits of before.

    Args:
        hf: The model of transformers.
        logits_of: Returns its logits of pictures `[B, H, W, C]`.
        pixels: Such pictures, floats.
        rows: The tokens of their rows, as they are here.
        folder: Where files are written.
        sized: Returns the config that is built, of the one that is read.
        near: Absolute tolerance; of gradients, a factor on the largest of an array.
        floor: Added to that: rounding, where zero is exact (biases of keys).
        saved: Called with each folder that transformers has written, which it may change.

    Returns:
        What was read.
    """
    import torch

    hf.save_pretrained(folder / "hf")
    saved(folder / "hf")
    found = from_hugging_face(folder / "hf")
    model = sized(found.config).build()

    @jax.jit
    def logits(state: Any, images: Any) -> Any:
        return functional(model, state, rows, inputs=images, method="logits")[0]

    of_torch = torch.tensor(pixels, requires_grad=True)
    wanted = logits_of(hf, of_torch)
    own = logits(found.state, jnp.asarray(pixels))
    np.testing.assert_allclose(own, wanted.detach().numpy(), rtol=1e-4, atol=near)
    weights = np.random.default_rng(1).normal(size=wanted.shape).astype(np.float32)
    (wanted * torch.tensor(weights)).sum().backward()
    total = lambda state, images: jnp.sum(logits(state, images) * weights)  # noqa: E731
    of_state, of_image = jax.grad(total, argnums=(0, 1))(found.state, jnp.asarray(pixels))
    np.testing.assert_allclose(of_image, of_torch.grad.numpy(), rtol=1e-3, atol=2 * near)

    to_hugging_face(folder / "back", found.config, found.state)
    back = type(hf).from_pretrained(folder / "back").eval()
    again = logits_of(back, of_torch.detach())
    np.testing.assert_array_equal(again.detach().numpy(), wanted.detach().numpy())
    # Gradients are arrays of the model's shapes, so both libraries can read them as weights.
    for one in hf.parameters():
        one.data = torch.zeros_like(one) if one.grad is None else one.grad
    hf.save_pretrained(folder / "gradients")
    saved(folder / "gradients")
    expected = from_hugging_face(folder / "gradients").state
    for (path, gradient), mine in zip(
        jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(of_state), strict=True
    ):
        allowed = near * float(np.abs(gradient).max()) + floor
        np.testing.assert_allclose(mine, gradient, rtol=1e-3, atol=allowed, err_msg=str(path))
    return found
