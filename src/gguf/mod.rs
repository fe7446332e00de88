//! The GGUF container: header, metadata, tensor index, and the byte sources they are read from.
