// Cuts a GGUF file into the parts of a split model, as llama.cpp's gguf-split does: the first part has the metadata.

const VALUE_BYTES = { 0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8 };
const [STRING, ARRAY, U16, I32] = [8, 9, 2, 5];
const ALIGNMENT = 32;

const align = (n) => Math.ceil(n / ALIGNMENT) * ALIGNMENT;
const u32 = (n) => { const b = Buffer.alloc(4); b.writeUInt32LE(n); return b; };
const u64 = (n) => { const b = Buffer.alloc(8); b.writeBigUInt64LE(BigInt(n)); return b; };
const text = (words) => Buffer.concat([u64(Buffer.byteLength(words)), Buffer.from(words)]);
const u16Entry = (key, n) => Buffer.concat([text(key), u32(U16), Buffer.from([n & 255, n >> 8])]);

/** The parts of `file` (a Buffer), each with about as many tensors as the others. */
export function split(file, count) {
  let at = 24;
  const take = (bytes) => { at += bytes; return at - bytes; };
  const length = () => Number(file.readBigUInt64LE(take(8)));
  const skip = (type) => {
    if (type === STRING) take(length());
    else if (type === ARRAY) { const of = file.readUInt32LE(take(4)); for (let n = length(); n > 0; n -= 1) skip(of); } else take(VALUE_BYTES[type]);
  };
  const [tensors, entries] = [Number(file.readBigUInt64LE(8)), Number(file.readBigUInt64LE(16))];
  for (let i = 0; i < entries; i += 1) { take(length()); skip(file.readUInt32LE(take(4))); }
  const metadata = file.subarray(24, at);
  const index = Array.from({ length: tensors }, () => {
    const start = at;
    take(length());
    take(8 * file.readUInt32LE(take(4)));
    take(4);
    return { head: file.subarray(start, at), offset: Number(file.readBigUInt64LE(take(8))) };
  });
  const data = align(at);
  const ends = index.map((tensor) => tensor.offset).sort((a, b) => a - b);
  const end = (tensor) => ends.find((offset) => offset > tensor.offset) ?? file.length - data;
  return Array.from({ length: count }, (_, part) => {
    const own = index.slice(Math.floor(part * tensors / count), Math.floor((part + 1) * tensors / count));
    const places = [];
    const bytes = [];
    let offset = 0;
    for (const tensor of own) {
      const content = file.subarray(data + tensor.offset, data + end(tensor));
      places.push(tensor.head, u64(offset));
      bytes.push(content, Buffer.alloc(align(content.length) - content.length));
      offset += align(content.length);
    }
    const about = [u16Entry('split.no', part), u16Entry('split.count', count), text('split.tensors.count'), u32(I32), u32(tensors)];
    const header = Buffer.concat([
      file.subarray(0, 8), u64(own.length), u64((part === 0 ? entries : 0) + 3), ...(part === 0 ? [metadata] : []), ...about, ...places,
    ]);
    return Buffer.concat([header, Buffer.alloc(align(header.length) - header.length), ...bytes]);
  });
}
