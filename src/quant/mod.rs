//! Block types: reference dequantisation on the CPU and repacking into GPU planes.
