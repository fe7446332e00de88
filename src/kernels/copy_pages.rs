//! Copies of cache pages: the partly filled last page of a prefix, once for each branch that writes on.

use super::Variant;
use super::rope::Cache;
use crate::gpu::template::Defs;
use crate::gpu::{Access, Recorder, View, Work};
use bytemuck::{Pod, Zeroable};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Params {
    n: u32,
}

/// The kernel.
pub fn variant() -> Variant {
    Variant {
        label: "copy_pages".into(),
        file: "copy_pages.wgsl",
        defs: Defs::new(),
        access: vec![Access::Read, Access::Write, Access::Write],
    }
}

/// For each of `count` pairs (source page, target page): copies `page` f32 (a multiple of 4) of keys and of values.
pub fn copy_pages(rec: &mut Recorder, pairs: View<'_>, count: u32, cache: Cache<'_>, page: u32) {
    let kernel = variant().kernel(rec.gpu());
    let groups = [count, (page / 4).div_ceil(128), 1];
    let work = Work { operations: 0, bytes: u64::from(count) * u64::from(page) * 16, ..Work::default() };
    rec.dispatch(&kernel, &[pairs, cache.keys, cache.values], &Params { n: page / 4 }, groups, work);
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Random, download, recorder, upload};
    use super::*;

    #[test]
    fn copies_the_pages_and_nothing_else() {
        let mut rec = recorder();
        let gpu = rec.gpu().clone();
        let mut random = Random::new(12);
        let page = 600usize;
        let (k, v) = (random.values(5 * page), random.values(5 * page));
        let (keys, values, pairs) = (upload(&gpu, &k), upload(&gpu, &v), upload(&gpu, &[[0u32, 3], [4, 1]]));
        copy_pages(&mut rec, pairs.all(), 2, Cache { keys: keys.all(), values: values.all() }, page as u32);
        for (buffer, mut wanted) in [(&keys, k), (&values, v)] {
            wanted.copy_within(0..page, 3 * page);
            wanted.copy_within(4 * page..5 * page, page);
            assert_eq!(download::<f32>(&mut rec, buffer, 5 * page), wanted);
        }
    }
}
