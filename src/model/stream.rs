//! Streams the pieces of a model file to their places on the GPU: read, repack, upload. The file never stands in memory as a whole.
//!
//! Where the source is a file, several threads take pieces as they get free, each with a window of its own; a browser does one piece
//! after the other. Which thread does what changes no byte.

use super::ModelError;
use super::weights::UploadProgress;
use crate::gguf::{BlockingSource, ByteSource, TensorInfo};
use crate::gpu::{Buffer, Gpu, Mark, beside, now_seconds, threads};
use crate::quant::{Planes, dequantize, repack_groups};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};

/// Bytes of a piece of the file; also bounds the repacked copy.
pub(super) const WINDOW: u64 = 8 << 20;
/// Bytes written before the queue is flushed, so that staging memory stays small.
const FLUSH: u64 = 64 << 20;
/// Bytes that threads may have read and that are not on the GPU yet. At least three flushes, or they would wait for each other.
const IN_FLIGHT: u64 = 4 * FLUSH;
/// More threads than this only wait for memory.
const THREADS: usize = 8;

/// Rows of a tensor and where they go.
pub(super) struct Piece {
    pub tensor: TensorInfo,
    /// First row and number of rows.
    pub row: u64,
    pub rows: u64,
    pub buffer: Arc<Buffer>,
    pub target: Target,
}

/// How a piece stands on the GPU.
pub(super) enum Target {
    /// Repacked, the planes from these byte offsets.
    Planes([u64; 4]),
    /// As f32, from this byte offset.
    Values(u64),
}

impl Piece {
    fn bytes(&self) -> u64 {
        self.tensor.bytes / self.tensor.rows().max(1) * self.rows
    }

    fn offset(&self) -> u64 {
        self.tensor.offset + self.tensor.bytes / self.tensor.rows().max(1) * self.row
    }
}

/// Where the time of an upload went: seconds of all threads together.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct StreamTimes {
    /// Threads that worked.
    pub threads: usize,
    /// Reading the file.
    pub read: f64,
    /// Repacking into planes.
    pub repack: f64,
    /// Copying into staging memory.
    pub upload: f64,
    /// Waiting for the GPU to take what was uploaded.
    pub wait: f64,
}

/// What one thread needs: a window, the planes of a piece, and a clock.
#[derive(Default)]
struct Worker {
    window: Vec<u8>,
    planes: Planes,
    values: Vec<f32>,
    times: StreamTimes,
}

impl Worker {
    /// Repacks the window, which holds `piece`, and uploads it.
    fn place(&mut self, gpu: &Gpu, piece: &Piece) -> Result<(), ModelError> {
        let start = now_seconds();
        let (ty, cols) = (piece.tensor.ty, piece.tensor.dims.first().copied().unwrap_or(0));
        let failed = |source| ModelError::Quant { name: piece.tensor.name.clone(), source };
        let repacked = match piece.target {
            Target::Planes(at) => {
                self.planes.clear();
                repack_groups(ty, cols, &self.window, &mut self.planes).map_err(failed)?;
                let repacked = now_seconds();
                let p = &self.planes;
                for (data, at) in [&p.quants, &p.high, &p.scales, &p.scales2].into_iter().zip(at) {
                    if !data.is_empty() {
                        gpu.write(&piece.buffer, at, data);
                    }
                }
                repacked
            }
            Target::Values(at) => {
                self.values.resize(piece.tensor.dims.iter().product::<u64>() as usize, 0.0);
                dequantize(ty, &self.window, &mut self.values).map_err(failed)?;
                let repacked = now_seconds();
                gpu.write(&piece.buffer, at, bytemuck::cast_slice(&self.values));
                repacked
            }
        };
        self.times.repack += repacked - start;
        self.times.upload += now_seconds() - repacked;
        Ok(())
    }
}

/// What is on its way to the GPU, in the order of its flushes.
struct Flow<'a> {
    gpu: &'a Gpu,
    state: UploadProgress,
    progress: &'a mut dyn FnMut(UploadProgress) -> ControlFlow<()>,
    pending: u64,
    flushed: Option<(Mark, u64)>,
    wait: f64,
}

impl Flow<'_> {
    /// Notes uploaded bytes. Now and then it flushes, and waits for the flush before: one is always under way. Gives the bytes whose
    /// staging memory is free again.
    async fn advance(&mut self, bytes: u64) -> Result<u64, ModelError> {
        self.state.done += bytes;
        self.pending += bytes;
        let mut free = 0;
        if self.pending >= FLUSH {
            let before = self.flushed.replace((self.gpu.flush_writes(), std::mem::take(&mut self.pending)));
            free = self.arrived(before).await?;
        }
        match (self.progress)(self.state) {
            ControlFlow::Continue(()) => Ok(free),
            ControlFlow::Break(()) => Err(ModelError::Cancelled),
        }
    }

    async fn arrived(&mut self, flushed: Option<(Mark, u64)>) -> Result<u64, ModelError> {
        let Some((mark, bytes)) = flushed else { return Ok(0) };
        let start = now_seconds();
        self.gpu.reached(mark).await?;
        self.wait += now_seconds() - start;
        Ok(bytes)
    }

    async fn finish(mut self) -> Result<f64, ModelError> {
        let last = self.gpu.flush_writes();
        self.arrived(Some((last, 0))).await?;
        Ok(self.wait)
    }
}

/// Reads, repacks and uploads all pieces.
///
/// # Errors
/// Unreadable source, GPU faults, or `progress` asked to stop.
pub(super) async fn stream(
    gpu: &Gpu,
    source: &impl ByteSource,
    pieces: &[Piece],
    progress: &mut dyn FnMut(UploadProgress) -> ControlFlow<()>,
) -> Result<StreamTimes, ModelError> {
    let state = UploadProgress { done: 0, total: pieces.iter().map(Piece::bytes).sum() };
    let mut flow = Flow { gpu, state, progress, pending: 0, flushed: None, wait: 0.0 };
    let mut times = match source.blocking() {
        Some(source) if threads() > 1 => side_by_side(gpu, source, pieces, &mut flow).await?,
        _ => in_turn(gpu, source, pieces, &mut flow).await?,
    };
    times.wait = flow.finish().await?;
    Ok(times)
}

async fn in_turn(gpu: &Gpu, source: &impl ByteSource, pieces: &[Piece], flow: &mut Flow<'_>) -> Result<StreamTimes, ModelError> {
    let mut worker = Worker::default();
    for piece in pieces {
        let start = now_seconds();
        worker.window.resize(piece.bytes() as usize, 0);
        source.read_at(piece.offset(), &mut worker.window).await?;
        worker.times.read += now_seconds() - start;
        worker.place(gpu, piece)?;
        flow.advance(piece.bytes()).await?;
    }
    Ok(StreamTimes { threads: 1, ..worker.times })
}

/// Bytes that are read and not yet on the GPU; threads wait while there are many.
struct Gate {
    bytes: Mutex<Option<u64>>,
    changed: Condvar,
}

impl Gate {
    /// Waits for room; false when the gate is closed.
    fn enter(&self, bytes: u64) -> bool {
        let mut now = self.bytes.lock().unwrap_or_else(|e| e.into_inner());
        loop {
            match &mut *now {
                None => return false,
                Some(inside) if *inside == 0 || *inside + bytes <= IN_FLIGHT => {
                    *inside += bytes;
                    return true;
                }
                Some(_) => now = self.changed.wait(now).unwrap_or_else(|e| e.into_inner()),
            }
        }
    }

    fn leave(&self, bytes: u64) {
        if let Some(inside) = &mut *self.bytes.lock().unwrap_or_else(|e| e.into_inner()) {
            *inside = inside.saturating_sub(bytes);
        }
        self.changed.notify_all();
    }

    fn close(&self) {
        *self.bytes.lock().unwrap_or_else(|e| e.into_inner()) = None;
        self.changed.notify_all();
    }
}

/// A piece that is uploaded, with its bytes; `None` when a thread has ended.
type News = Option<Result<u64, ModelError>>;

/// Tells that a thread has ended, also when it panics: somebody waits for it.
struct Ending<'a>(&'a mpsc::Sender<News>);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let _ = self.0.send(None);
    }
}

/// The same by several threads. They read and repack; this one flushes, and waits for the GPU.
async fn side_by_side(gpu: &Gpu, source: &dyn BlockingSource, pieces: &[Piece], flow: &mut Flow<'_>) -> Result<StreamTimes, ModelError> {
    let threads = threads().min(THREADS).min(pieces.len().max(1));
    let next = AtomicUsize::new(0);
    let gate = Gate { bytes: Mutex::new(Some(0)), changed: Condvar::new() };
    let (news, heard) = mpsc::channel::<News>();
    let work = || {
        let _ending = Ending(&news);
        let mut worker = Worker::default();
        while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            if !gate.enter(piece.bytes()) {
                break;
            }
            let start = now_seconds();
            worker.window.resize(piece.bytes() as usize, 0);
            let read = source.read_blocking(piece.offset(), &mut worker.window);
            worker.times.read += now_seconds() - start;
            let placed = read.map_err(ModelError::from).and_then(|()| worker.place(gpu, piece));
            // Who listens waits for the end of every thread.
            let _ = news.send(Some(placed.map(|()| piece.bytes())));
        }
        worker.times
    };
    let listen = || {
        let (mut result, mut ended) = (Ok(()), 0);
        while ended < threads {
            let freed = match (heard.recv(), &result) {
                // The source blocks, so there is an executor that may block too: waiting for the GPU here keeps nothing waiting.
                (Ok(Some(Ok(bytes))), Ok(())) => pollster::block_on(flow.advance(bytes)),
                (Ok(Some(Err(error))), Ok(())) => Err(error),
                (Ok(Some(_)), Err(_)) => continue,
                (Ok(None) | Err(_), _) => {
                    ended += 1;
                    continue;
                }
            };
            match freed {
                Ok(bytes) => gate.leave(bytes),
                Err(error) => {
                    result = Err(error);
                    gate.close();
                }
            }
        }
        result
    };
    let (workers, result) = beside(threads, work, listen);
    let sum = |all: StreamTimes, one: StreamTimes| StreamTimes {
        read: all.read + one.read,
        repack: all.repack + one.repack,
        upload: all.upload + one.upload,
        ..all
    };
    result.map(|()| workers.into_iter().fold(StreamTimes { threads, ..StreamTimes::default() }, sum))
}
