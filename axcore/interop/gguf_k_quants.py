"""K-quants of GGUF files: rows of numbers to blocks of `Q4_K` and `Q6_K`.

A block has 256 numbers of a row in groups, each with a scale of few bits, and one scale of these.
The library `gguf` reads such blocks and writes none.

Source: `block_q4_K`, `block_q6_K`, `make_qkx2_quants` and `make_qx_quants` of ggml's
`ggml-quants.c`. Shape letters: B blocks, G groups of a block, N numbers of a group.
"""

from collections.abc import Callable

import numpy as np

BLOCK = 256
"""Numbers of a block."""
_TINY = np.float32(1e-15)
"""Below this a group is zero."""


def quantize_q4_k(rows: np.ndarray) -> np.ndarray:
    """Return rows of float32, [R, 256 n], as bytes, [R, 144 n].

    A number of four bits `q` means `d * scale * q - dmin * min`, with scale and min of its 32.
    """
    return _in_pieces(rows, _q4_k_blocks)


def quantize_q6_k(rows: np.ndarray) -> np.ndarray:
    """Return rows of float32, [R, 256 n], as bytes, [R, 210 n].

    A number of six bits `q` means `d * scale * (q - 32)`, with the scale of its 16, of 8 bits.
    """
    return _in_pieces(rows, _q6_k_blocks)


# Twenty grids are tried one after the other, each of which reads the same numbers.
_PIECE = 64
"""Blocks that are quantized together, so that they stay in a cache."""


def _in_pieces(rows: np.ndarray, quantize: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    blocks = rows.reshape(-1, BLOCK)
    pieces = [quantize(blocks[i : i + _PIECE]) for i in range(0, len(blocks), _PIECE)]
    return np.concatenate(pieces).reshape(len(rows), -1)


def _q4_k_blocks(blocks: np.ndarray) -> np.ndarray:
    x_BGN = blocks.reshape(-1, 8, 32)
    scales, lows = _fit_with_minimum(x_BGN.reshape(-1, 32), 15)
    scales_BG, lows_BG = scales.reshape(-1, 8), lows.reshape(-1, 8)
    d_B, scales6_BG = _six_bits(scales_BG)
    dmin_B, lows6_BG = _six_bits(lows_BG)
    # Codes are of the scales as they are stored, which differ from those that fit best.
    step = (_as_stored(d_B)[:, None] * scales6_BG)[..., None]
    low = (_as_stored(dmin_B)[:, None] * lows6_BG)[..., None]
    codes = np.rint(np.divide(x_BGN + low, step, out=np.zeros_like(x_BGN), where=step != 0))
    codes_BGN = np.clip(codes, 0, 15).astype(np.uint8)
    out = np.empty((len(x_BGN), 144), np.uint8)
    out[:, 0:2], out[:, 2:4] = _bytes(d_B), _bytes(dmin_B)
    out[:, 4:16] = _packed_scales(scales6_BG.astype(np.uint8), lows6_BG.astype(np.uint8))
    # A byte has a number of an even group in its low half, and one of the next group.
    out[:, 16:] = (codes_BGN[:, ::2] | codes_BGN[:, 1::2] << 4).reshape(-1, 128)
    return out


def _q6_k_blocks(blocks: np.ndarray) -> np.ndarray:
    x_BGN = blocks.reshape(-1, 16, 16)
    scales_BG = _fit_symmetric(x_BGN.reshape(-1, 16), 32).reshape(-1, 16)
    largest_B = np.take_along_axis(scales_BG, np.abs(scales_BG).argmax(1)[:, None], 1)[:, 0]
    inverse_B = np.divide(-128, largest_B, out=np.zeros_like(largest_B), where=largest_B != 0)
    d_B = np.divide(1, inverse_B, out=np.zeros_like(inverse_B), where=inverse_B != 0)
    scales8_BG = np.clip(np.rint(inverse_B[:, None] * scales_BG), -128, 127)
    step = (_as_stored(d_B)[:, None] * scales8_BG)[..., None]
    codes = np.rint(np.divide(x_BGN, step, out=np.zeros_like(x_BGN), where=step != 0))
    q = (np.clip(codes, -32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low, high = q & 15, q >> 4
    out = np.empty((len(x_BGN), 210), np.uint8)
    # Of each half of a block, 32 numbers share bytes with the next but one 32, and bits with all.
    out[:, :128] = (low[:, :, :2] | low[:, :, 2:] << 4).reshape(-1, 128)
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    out[:, 128:192] = np.bitwise_or.reduce(high << shifts, axis=2).reshape(-1, 64)
    out[:, 192:208] = scales8_BG.astype(np.int8).view(np.uint8)
    out[:, 208:] = _bytes(d_B)
    return out


def _fit_with_minimum(x_GN: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return scales and minima of groups, for numbers from 0 to `most`; minima are positive.

    Of 22 grids, the one whose weighted error is smallest: first the one that spans all numbers,
    then wider and narrower ones, each with the scale and minimum of a least-squares fit.
    """
    x_NG = np.ascontiguousarray(x_GN.T)
    weight_NG = np.sqrt((x_NG**2).mean(0)) + np.abs(x_NG)
    low_G, high_G = np.minimum(x_NG.min(0), 0), x_NG.max(0)
    is_flat = high_G <= low_G
    width_G = np.where(is_flat, np.float32(1), high_G - low_G)
    from_low = x_NG - low_G
    sum_w, sum_x = weight_NG.sum(0), (weight_NG * x_NG).sum(0)
    scale_G, min_G = width_G / np.float32(most), low_G
    codes = np.clip(np.rint(from_low / scale_G), 0, most)
    best_G = _weighted_error(codes, scale_G, min_G, x_NG, weight_NG)
    for step in range(21):
        inverse = np.float32(most - 1 + 0.1 * step) / width_G
        codes = np.clip(np.rint(from_low * inverse), 0, most)
        weighted = weight_NG * codes
        sum_l, sum_l2 = weighted.sum(0), (weighted * codes).sum(0)
        sum_xl = (weighted * x_NG).sum(0)
        determinant = sum_w * sum_l2 - sum_l * sum_l
        has_fit = determinant > 0
        safe = np.where(has_fit, determinant, 1)
        scale = (sum_w * sum_xl - sum_x * sum_l) / safe
        least = (sum_l2 * sum_x - sum_l * sum_xl) / safe
        # A minimum above zero cannot be stored.
        alone = sum_xl / np.where(sum_l2 > 0, sum_l2, 1)
        scale, least = np.where(least > 0, alone, scale), np.minimum(least, 0)
        error = _weighted_error(codes, scale, least, x_NG, weight_NG)
        is_better = has_fit & (error < best_G)
        best_G = np.where(is_better, error, best_G)
        scale_G, min_G = np.where(is_better, scale, scale_G), np.where(is_better, least, min_G)
    return np.where(is_flat, 0, scale_G).astype(np.float32), (-min_G).astype(np.float32)


def _weighted_error(
    codes: np.ndarray, scale: np.ndarray, least: np.ndarray, x_NG: np.ndarray, weight: np.ndarray
) -> np.ndarray:
    off = codes * scale
    off += least
    off -= x_NG
    off *= off
    off *= weight
    error: np.ndarray = off.sum(0)
    return error


def _fit_symmetric(x_GN: np.ndarray, half: int) -> np.ndarray:
    """Return scales of groups, for numbers from `-half` to `half - 1`.

    Of 19 scales, the one that fits numbers best, each weighted by its square.
    """
    x_NG = np.ascontiguousarray(x_GN.T)
    largest_G = np.take_along_axis(x_NG, np.abs(x_NG).argmax(0)[None], 0)[0]
    is_zero = np.abs(largest_G) < _TINY
    safe = np.where(is_zero, np.float32(1), largest_G)
    weight_NG = x_NG * x_NG
    scale_G, best_G = np.zeros_like(safe), np.full_like(safe, -1)
    for step in (0, *range(-9, 0), *range(1, 10)):
        inverse = np.float32(-(half + 0.1 * step)) / safe
        codes = np.clip(np.rint(x_NG * inverse), -half, half - 1)
        weighted = weight_NG * codes
        sum_xl, sum_l2 = (weighted * x_NG).sum(0), (weighted * codes).sum(0)
        scale = sum_xl / np.where(sum_l2 > 0, sum_l2, 1)
        gain = np.where(sum_l2 > 0, scale * sum_xl, -1)
        is_better = gain > best_G
        scale_G, best_G = np.where(is_better, scale, scale_G), np.where(is_better, gain, best_G)
    return np.where(is_zero, 0, scale_G).astype(np.float32)


def _six_bits(values_BG: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return values of groups as six bits each, and what a block multiplies these by."""
    largest_B = values_BG.max(1)
    inverse = np.divide(63, largest_B, out=np.zeros_like(largest_B), where=largest_B > 0)
    codes = np.minimum(np.rint(inverse[:, None] * values_BG), 63)
    return largest_B / np.float32(63), np.maximum(codes, 0).astype(np.float32)


def _packed_scales(scales_BG: np.ndarray, lows_BG: np.ndarray) -> np.ndarray:
    """Return eight scales and eight minima of six bits each as twelve bytes.

    Those of the last four groups have four bits in bytes of their own, and two in the first eight.
    """
    out = np.empty((len(scales_BG), 12), np.uint8)
    out[:, :4] = scales_BG[:, :4] | scales_BG[:, 4:] >> 4 << 6
    out[:, 4:8] = lows_BG[:, :4] | lows_BG[:, 4:] >> 4 << 6
    out[:, 8:] = (scales_BG[:, 4:] & 15) | lows_BG[:, 4:] << 4
    return out


def _as_stored(numbers: np.ndarray) -> np.ndarray:
    return numbers.astype(np.float16).astype(np.float32)


def _bytes(numbers: np.ndarray) -> np.ndarray:
    return numbers.astype(np.float16).view(np.uint8).reshape(-1, 2)
