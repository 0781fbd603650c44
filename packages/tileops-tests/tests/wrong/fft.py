"""Fourier transform: one right implementation and plausible wrong ones."""

from __future__ import annotations

import torch


def right(input):
    # MKL takes no empty batch.
    return torch.fft.fft(input) if input.numel() else input.clone()


def turns_the_other_way(input):
    return torch.fft.fft(input.conj()).conj().resolve_conj()


def normalised(input):
    return torch.fft.fft(input, norm="ortho")


def single_precision(input):
    return torch.fft.fft(input.to(torch.complex64)).to(input.dtype)


def real_parts_alone(input):
    return torch.view_as_real(torch.fft.fft(input)).contiguous()


def imaginary_part_missing(input):
    out = torch.fft.fft(input)
    return torch.complex(out.real, torch.zeros_like(out.imag))
