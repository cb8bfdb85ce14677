"""The CS336 decoder, instrumented with NVTX ranges, and what it costs in FLOPs and bytes."""

if __name__ == "model":  # imported by its bare name
    from nvtx_kernels.folders import be_one

    be_one(__name__)
