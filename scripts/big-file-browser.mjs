// A file of several gigabytes in the browser, as a visitor would load it: picked, copied into the page's storage (OPFS), streamed to the
// GPU, one short decision. Prints the times and how far the worker's WASM heap grew. Not part of ./test: minutes on a software adapter.
//
//   . scripts/lib.sh && need_browser && scripts/build-web dist/web
//   node scripts/big-file-browser.mjs dist/web MODEL.gguf [HEAP_LIMIT_MB]
//
// Environment: CHROMIUM, NODE_PATH and SEMIF_CHROMIUM_FLAGS as for tests/browser/run.mjs. Exit code 1 when something failed or the heap
// grew beyond the limit (400 MB).
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { serve } from '../tests/browser/server.mjs';
import { openBrowser, openPage } from '../tests/browser/harness.mjs';

const [dist, model, limit = '400'] = process.argv.slice(2);
if (!dist || !model) {
  console.error('usage: node scripts/big-file-browser.mjs DIST MODEL.gguf [HEAP_LIMIT_MB]');
  process.exit(2);
}
const PATIENCE = 3_600_000;

// The worker's memory is private to it. A copy of the page with a loader that keeps a handle shows its size; nothing else differs.
const copy = fs.mkdtempSync(path.join(os.tmpdir(), 'semif-big-'));
fs.cpSync(dist, copy, { recursive: true });
fs.writeFileSync(path.join(copy, 'worker_loader.js'), `
import init from './worker.js';
let memory;
globalThis.heapBytes = () => memory?.buffer.byteLength ?? 0;
for (const name of ['instantiate', 'instantiateStreaming']) {
  const original = WebAssembly[name];
  WebAssembly[name] = async (...rest) => {
    const result = await original.apply(WebAssembly, rest);
    memory = (result.instance ?? result).exports.memory;
    return result;
  };
}
await init({ module_or_path: './worker_bg.wasm' });
`);

const server = await serve({ '/page/': copy });
const browser = await openBrowser();
const say = (words) => console.log(`${new Date().toISOString().slice(11, 19)} ${words}`);
let failed = false;
try {
  const page = await openPage(browser, `${server.url}/page/?test`);
  page.setDefaultTimeout(PATIENCE);
  await page.waitForSelector('.device .good, .device .slow');
  say(`device: ${(await page.locator('summary').first().innerText()).trim()}`);
  const heap = async () => Math.max(0, ...await Promise.all(page.workers().map((worker) => worker.evaluate(() => globalThis.heapBytes?.() ?? 0))));
  // A WASM memory never shrinks, so its size after loading is the most it ever was.
  const start = Date.now();
  const seconds = () => ((Date.now() - start) / 1000).toFixed(0);
  say(`loading ${path.basename(model)}, ${(fs.statSync(model).size / 1e6).toFixed(0)} MB`);
  await page.setInputFiles('#file', model);
  const watch = setInterval(async () => {
    const words = await page.locator('.tile.now .tile-words').first().innerText({ timeout: 5000 }).catch(() => '');
    say(`${seconds()} s, heap ${(await heap().catch(() => 0) / 1e6).toFixed(1)} MB ${words.replace(/\s+/g, ' ')}`);
  }, 20_000);
  await page.waitForSelector('#loaded, .fault, .notice.bad', { timeout: PATIENCE });
  if (!await page.locator('#loaded').count()) throw new Error(await page.locator('body').innerText());
  say(`loaded after ${seconds()} s, heap ${(await heap() / 1e6).toFixed(1)} MB`);
  const tokens = Array.from({ length: 24 }, (_, i) => 1000 + 37 * i);
  const began = Date.now();
  const logits = await page.evaluate(([tokens, labels]) => window.semif.logits(tokens, labels), [[tokens], [32, 33, 34, 35]]);
  clearInterval(watch);
  say(`one reading of ${tokens.length} tokens after ${((Date.now() - began) / 1000).toFixed(0)} s: ${JSON.stringify(logits)}`);
  if (!logits[0].every(Number.isFinite)) throw new Error('the logits are no numbers');
  const most = await heap() / 1e6;
  say(`heap ${most.toFixed(1)} MB, limit ${limit} MB`);
  if (!(most > 0 && most < Number(limit))) throw new Error('the heap grew too far, or was not seen');
  if (page.faults.length) throw new Error(page.faults.join('\n'));
} catch (error) {
  failed = true;
  console.error(error);
}
await browser.close();
await server.close();
fs.rmSync(copy, { recursive: true, force: true });
process.exit(failed ? 1 : 0);
