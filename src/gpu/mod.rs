//! Device, limits, buffers, pipelines and readback.
