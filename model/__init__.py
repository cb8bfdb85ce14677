"""The CS336 decoder, instrumented with NVTX ranges, and what it costs in FLOPs and bytes."""
