//! Browser faces: worker, storage and page.
