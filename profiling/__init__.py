"""Instrument a PyTorch model with NVTX ranges, run it, and record what the GPU did."""
