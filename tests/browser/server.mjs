// A static server on loopback, with what hosts of models do: ranges, etags, and (on request) broken and slow connections.
import http from 'node:http';
import fs from 'node:fs';
import path from 'node:path';

const TYPES = { '.html': 'text/html', '.js': 'text/javascript', '.wasm': 'application/wasm', '.css': 'text/css', '.svg': 'image/svg+xml' };

/**
 * Serves `folders` ({'/prefix/': folder}) and returns {url, log, close}. `log` holds {url, range, ifRange} of each request.
 * Query parameters of a file: `cut=N` breaks the connection after N bytes of the first request for that address,
 * `pace=N` sends N bytes a second, `plain=1` ignores ranges, `bare=1` names no version, `open=1` lets pages of other hosts read it, `shift=N` gives parts that begin N bytes
 * later than asked for, and says so. `before` holds texts by path that are put in front of a file, `instead` texts, or files ({file}), that stand in for one.
 */
export async function serve(folders) {
  const log = [];
  const seen = new Set();
  const [before, instead] = [{}, {}];
  const server = http.createServer((request, response) => {
    const url = new URL(request.url, 'http://localhost');
    log.push({ url: request.url, range: request.headers.range, ifRange: request.headers['if-range'] });
    const prefix = Object.keys(folders).find((prefix) => url.pathname.startsWith(prefix));
    const root = prefix && path.resolve(folders[prefix]);
    const wanted = prefix && decodeURIComponent(url.pathname.slice(prefix.length));
    const own = prefix && path.resolve(root, wanted === '' ? 'index.html' : wanted);
    const other = instead[url.pathname];
    const file = other?.file ?? own;
    if (!own || !own.startsWith(root + path.sep) || !fs.existsSync(file)) {
      response.writeHead(404, { 'content-type': 'text/html' });
      return response.end('<!doctype html>nothing here');
    }
    if (typeof other === 'string') {
      response.writeHead(200, { 'content-type': TYPES[path.extname(file)], 'cache-control': 'no-store' });
      return response.end(other);
    }
    if (before[url.pathname]) {
      response.writeHead(200, { 'content-type': TYPES[path.extname(file)], 'cache-control': 'no-store' });
      return response.end(before[url.pathname] + fs.readFileSync(file, 'utf8'));
    }
    const { size, mtimeMs } = fs.statSync(file);
    const etag = `"${size}-${Math.floor(mtimeMs)}"`;
    const headers = { 'content-type': TYPES[path.extname(file)] ?? 'application/octet-stream', etag, 'accept-ranges': 'bytes', 'cache-control': 'no-store' };
    if (url.searchParams.has('bare')) delete headers.etag;
    if (url.searchParams.has('open')) {
      Object.assign(headers, { 'access-control-allow-origin': '*', 'access-control-allow-headers': 'range, if-range', 'access-control-expose-headers': 'content-range, content-length, etag' });
      if (request.method === 'OPTIONS') {
        response.writeHead(204, headers);
        return response.end();
      }
    }
    const range = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? '');
    const current = !request.headers['if-range'] || request.headers['if-range'] === etag;
    let [start, end] = [0, size - 1];
    if (range && current && !url.searchParams.has('plain')) {
      [start, end] = [Number(range[1]), range[2] === '' ? size - 1 : Math.min(Number(range[2]), size - 1)];
      start += Number(url.searchParams.get('shift') ?? 0);
      if (start > end) {
        response.writeHead(416, { 'content-range': `bytes */${size}` });
        return response.end();
      }
      headers['content-range'] = `bytes ${start}-${end}/${size}`;
      response.writeHead(206, { ...headers, 'content-length': end - start + 1 });
    } else {
      response.writeHead(200, { ...headers, 'content-length': size });
    }
    const cut = seen.has(request.url) ? 0 : Number(url.searchParams.get('cut') ?? 0);
    seen.add(request.url);
    send(file, start, end, response, cut, Number(url.searchParams.get('pace') ?? 0));
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const close = () => new Promise((resolve) => { server.closeAllConnections(); server.close(resolve); });
  return { port: server.address().port, url: `http://127.0.0.1:${server.address().port}`, log, before, instead, close };
}

function send(file, start, end, response, cut, pace) {
  const stream = fs.createReadStream(file, { start, end, highWaterMark: pace ? Math.max(1024, Math.ceil(pace / 10)) : 1 << 20 });
  let sent = 0;
  stream.on('data', (chunk) => {
    sent += chunk.length;
    if (cut && sent > cut) {
      response.write(chunk.subarray(0, chunk.length - (sent - cut)), () => response.destroy());
      return stream.destroy();
    }
    if (!response.write(chunk) || pace) {
      stream.pause();
      if (pace) setTimeout(() => stream.resume(), 100);
      else response.once('drain', () => stream.resume());
    }
  });
  stream.on('end', () => response.end());
  response.on('close', () => stream.destroy());
}
