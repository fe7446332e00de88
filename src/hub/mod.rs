//! Native files: models on disk, downloads, the ladder.
