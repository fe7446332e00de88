// The other published mixes of a full-size model in real Chromium on a GPU: their logits against the native program's, loading time, GPU bytes.
// For these no full-size reference stands; their tiny forms are held against float64 in the tests.
//
//   node scripts/device/chrome-mixes.mjs DIST SEMIF MODEL.gguf...
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { execFileSync } from 'node:child_process';
import { serve } from '../../tests/browser/server.mjs';
import { openBrowser, openPage } from '../../tests/browser/harness.mjs';

const [dist, semif, ...files] = process.argv.slice(2);
const labels = Array.from({ length: 20 }, (_, i) => 32 + i);
const sequences = [31, 100].map((n) => Array.from({ length: n }, (_, i) => 1000 + ((i * 7919 + n) % 50000)));
const asked = path.join(os.tmpdir(), 'mixes-tokens.json');
fs.writeFileSync(asked, JSON.stringify(sequences));
/** MB of the whole card in use, as the driver tells it. */
const used = () => Number(execFileSync('nvidia-smi', ['--query-gpu=memory.used', '--format=csv,noheader,nounits'], { encoding: 'utf8' }).trim());

const server = await serve({ '/page/': dist, '/models/': path.dirname(files[0]) });
const browser = await openBrowser();
for (const file of files) {
  const lines = execFileSync(semif, ['logits', '--gguf', file, '--precision', 'exact', '--tokens-file', asked, '--labels', labels.join(',')], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] });
  const native = lines.trim().split('\n').map((line) => JSON.parse(line).labels);
  const before = used();
  let most = before;
  const watch = setInterval(() => { most = Math.max(most, used()); }, 400);
  const page = await openPage(browser, `${server.url}/page/?test`);
  page.setDefaultTimeout(300_000);
  await page.waitForFunction(() => window.semif);
  const out = await page.evaluate(async ({ url, sequences, labels }) => {
    const start = performance.now();
    const model = await window.semif.load(url, { precision: 'exact' });
    const loaded = performance.now();
    const found = await window.semif.logits(sequences, labels);
    return { found, load_s: +((loaded - start) / 1e3).toFixed(1), planned_gpu_bytes: model.gpu_bytes ?? model.gpuBytes };
  }, { url: `${server.url}/models/${path.basename(file)}`, sequences, labels });
  clearInterval(watch);
  const off = Math.max(...native.flatMap((row, i) => row.map((v, k) => Math.abs(v - out.found[i][k]))));
  const top = (row) => row.indexOf(Math.max(...row));
  const same = native.every((row, i) => top(row) === top(out.found[i]));
  delete out.found;
  console.log(JSON.stringify({ file: path.basename(file), file_bytes: fs.statSync(file).size, ...out, off_native: off, same_argmax: same, card_mb_before: before, card_mb_most: most }));
  if (!(off < 2e-2 && same)) process.exitCode = 1;
  await page.close();
}
await browser.close();
await server.close();
