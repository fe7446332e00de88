//! The GGUF reader on real files, against an independent reader, and what it allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use semif::gguf::testing::Writer;
use semif::gguf::{Array, ByteSource, Gguf, MemorySource, TensorType, Value};
use semif::hub::FileSource;

/// Counts the bytes that are allocated, and their peak. Tests here run one after the other (`SERIAL`).
struct Counter;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static SERIAL: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn add(bytes: usize) {
    PEAK.fetch_max(NOW.fetch_add(bytes, Relaxed) + bytes, Relaxed);
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(pointer, layout) }
    }

    // Counted as the difference: the system moves large pieces without a second copy.
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        NOW.fetch_sub(layout.size(), Relaxed);
        add(size);
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTER: Counter = Counter;

/// Peak of what reading allocates.
fn peak(source: &impl ByteSource) -> (usize, Result<Gguf, semif::gguf::GgufError>) {
    let before = NOW.load(Relaxed);
    PEAK.store(before, Relaxed);
    let result = pollster::block_on(Gguf::read(source));
    (PEAK.load(Relaxed) - before, result)
}

fn serial() -> std::sync::MutexGuard<'static, ()> {
    SERIAL.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The model files of the references, from the folder `SEMIF_TEST_MODELS` or from the cache that `./test` fills. A missing
/// one is a failure.
fn models() -> Vec<PathBuf> {
    let folder = std::env::var_os("SEMIF_TEST_MODELS").map(PathBuf::from).unwrap_or_else(|| {
        let cache = std::env::var_os("SEMIF_CACHE").map(PathBuf::from).unwrap_or_else(|| {
            let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default());
            std::env::var_os("XDG_CACHE_HOME").map_or_else(|| home().join(".cache"), PathBuf::from).join("semif")
        });
        cache.join("models")
    });
    let references = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/oracle");
    let names = std::fs::read_dir(references).unwrap().map(|entry| entry.unwrap().path());
    let tiny = names.filter(|path| path.to_string_lossy().contains("-tiny-")).map(|path| path.file_stem().unwrap().to_owned());
    let mut models: Vec<PathBuf> = tiny.map(|name| folder.join(name).with_extension("gguf")).collect();
    models.extend(["smollm2.gguf", "qwen25coder05.gguf"].map(|name| folder.join(name)));
    models.sort();
    for path in &models {
        let shown = path.display();
        assert!(path.is_file(), "{shown} is missing. ./test makes and fetches the model files, or set SEMIF_TEST_MODELS to their folder");
    }
    models
}

fn json(value: &Value) -> serde_json::Value {
    match value {
        Value::U8(v) => (*v).into(),
        Value::I8(v) => (*v).into(),
        Value::U16(v) => (*v).into(),
        Value::I16(v) => (*v).into(),
        Value::U32(v) => (*v).into(),
        Value::I32(v) => (*v).into(),
        Value::F32(v) => (*v).into(),
        Value::Bool(v) => (*v).into(),
        Value::String(v) => v.as_str().into(),
        Value::U64(v) => (*v).into(),
        Value::I64(v) => (*v).into(),
        Value::F64(v) => (*v).into(),
        Value::Array(array) => (0..array.len()).filter_map(|i| array.get(i)).map(|v| json(&v)).collect(),
    }
}

#[track_caller]
fn agrees(path: &Path) {
    let ours = pollster::block_on(Gguf::read(&FileSource::open(path).unwrap())).unwrap();
    let mut container = gguf_rs::get_gguf_container_array_size(path.to_str().unwrap(), u64::MAX).unwrap();
    let theirs = container.decode().unwrap();
    assert_eq!(theirs.get_version(), format!("v{}", ours.version));
    assert_eq!(theirs.num_kv() as usize, ours.metadata.len());
    for (key, value) in ours.metadata.iter() {
        assert_eq!(Some(&json(value)), theirs.metadata().get(key), "{key}");
    }
    assert_eq!(theirs.tensors().len(), ours.tensors.len());
    for (ours_t, theirs_t) in ours.tensors.iter().zip(theirs.tensors()) {
        assert_eq!((&ours_t.name, &ours_t.dims, ours_t.ty.id()), (&theirs_t.name, &theirs_t.shape, theirs_t.kind));
        assert_eq!(ours_t.offset, theirs.data_offset() + theirs_t.offset, "{}", ours_t.name);
        // That reader takes BF16 for blocks of 256.
        if ours_t.ty != TensorType::BF16 {
            assert_eq!(ours_t.bytes, theirs_t.size, "{}", ours_t.name);
        }
    }
    assert_eq!(ours.data_offset, theirs.data_offset());
}

#[test]
fn agrees_with_an_independent_reader() {
    let _guard = serial();
    for path in models() {
        agrees(&path);
    }
}

#[test]
fn agrees_on_every_type_and_value() {
    let _guard = serial();
    let mut writer = Writer { version: 2, alignment: 64, ..Writer::default() }
        .entry("general.alignment", Value::U32(64))
        .entry("u8", Value::U8(200))
        .entry("i8", Value::I8(-3))
        .entry("u16", Value::U16(60_000))
        .entry("i16", Value::I16(-3))
        .entry("i32", Value::I32(i32::MIN))
        .entry("f32", Value::F32(0.1))
        .entry("bool", Value::Bool(true))
        .entry("u64", Value::U64(u64::MAX))
        .entry("i64", Value::I64(i64::MIN))
        .entry("f64", Value::F64(-1e300))
        .texts("tokenizer.ggml.tokens", (0..70_000).map(|i| format!("t{i}")))
        .entry("floats", Value::Array(Array::F32(vec![0.25; 9])))
        .entry("bools", Value::Array(Array::Bool(vec![true, false])));
    for ty in TensorType::ALL {
        writer = writer.zeros(&format!("{ty}.weight"), ty, &[256, 3]);
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all.gguf");
    std::fs::write(&path, writer.build()).unwrap();
    agrees(&path);
}

/// Reading a model allocates less than the model has bytes, the window and the bookkeeping included.
#[test]
fn memory_stays_below_the_size_of_a_real_file() {
    let _guard = serial();
    for path in models() {
        let source = FileSource::open(&path).unwrap();
        let (peak, result) = peak(&source);
        result.unwrap();
        let len = source.len() as usize;
        assert!(peak < len, "{}: {peak} bytes for a file of {len}", path.display());
    }
}

/// What a small file declares does not matter for memory.
#[test]
fn memory_stays_below_the_size_of_a_hostile_file() {
    let _guard = serial();
    let huge = [1 << 63, u64::MAX, 1 << 40, 1 << 32, 1 << 28, 1 << 20, 1 << 16, 1 << 14];
    let small = Writer::default().text("a", "b").texts("t", ["x", "y"]).zeros("w", TensorType::F32, &[32]).build();
    for at in 0..small.len() - 8 {
        for word in huge {
            let mut bytes = small.clone();
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
            let source = MemorySource::new("m", bytes);
            let (peak, _) = peak(&source);
            assert!(peak <= 4096 + small.len(), "{peak} bytes allocated for {word} at {at}");
        }
    }
    // Files that are all strings, of every size.
    for (count, len) in [(1 << 20, 0), (1 << 20, 1), (1 << 17, 20), (100, 100_000), (30, 1 << 20)] {
        let text = "x".repeat(len);
        within_size(Writer::default().texts("t", (0..count).map(|_| &text)));
    }
    within_size(Writer::default().text("t", &"x".repeat(20 << 20)));
    within_size(Writer::default().entry("t", Value::Array(Array::U8(vec![1; 10 << 20]))));
    within_size(Writer::default().entry("t", Value::Array(Array::Bool(vec![true; 10 << 20]))));
    within_size(Writer::default().entry("t", Value::Array(Array::F64(vec![0.5; 1 << 20]))));
}

/// Fails when reading this file takes more than its size, the window of 1 MiB, and a few kilobytes of bookkeeping.
#[track_caller]
fn within_size(writer: Writer) {
    let bytes = writer.build();
    let most = bytes.len() + (1 << 20) + 4096;
    let (peak, result) = peak(&MemorySource::new("m", bytes));
    result.unwrap();
    assert!(peak <= most, "{peak} bytes allocated, {most} expected");
}
