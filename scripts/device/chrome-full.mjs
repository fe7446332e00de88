// The full-size synthetic models in real Chromium on a GPU, through window.semif: difference from the reference, loading time, the card's memory
// while it loads and afterwards, wall times seen by the page, states of 1812 tokens with 21 questions of 78 each (the first makes the cache),
// the longest task of the page's main thread. Called by check.sh chrome-full.
//
//   node scripts/device/chrome-full.mjs DIST MODELS REFERENCES
//
// MODELS has the GGUF files, REFERENCES their full-*.json. Prints one JSON object a model and tier.
import fs from 'node:fs';
import path from 'node:path';
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { serve } from '../../tests/browser/server.mjs';
import { openBrowser, openPage } from '../../tests/browser/harness.mjs';

const [dist, models, references] = process.argv.slice(2);
const server = await serve({ '/page/': dist, '/models/': models });
const browser = await openBrowser();

/** MiB of the whole card in use, as the driver tells it; null where it does not. */
const used = async () => {
  try {
    const { stdout } = await promisify(execFile)('nvidia-smi', ['-i', '0', '--query-gpu=memory.used', '--format=csv,noheader,nounits']);
    return Number(stdout.trim());
  } catch {
    return null;
  }
};

/** Runs in the page: loads the model and compares it with the reference. */
async function load({ url, rows, labels, precision }) {
  const start = performance.now();
  const model = await window.semif.load(url, { precision });
  const loaded = performance.now();
  const found = await window.semif.logits(rows.map((row) => row.tokens), labels);
  const off = Math.max(...rows.map((row, i) => Math.max(...row.wanted.map((w, k) => Math.abs(found[i][k] - w)))));
  const best = (list) => list.indexOf(Math.max(...list));
  const same_argmax = rows.every((row, i) => best([...found[i]].slice(0, row.wanted.length)) === best(row.wanted));
  return { precision: model.precision, load_s: +((loaded - start) / 1e3).toFixed(1), off, same_argmax };
}

/** Runs in the page: times. */
async function measure() {
  const longest = { task: 0 };
  new PerformanceObserver((list) => { for (const entry of list.getEntries()) longest.task = Math.max(longest.task, entry.duration); }).observe({ entryTypes: ['longtask'] });
  const { semif } = window;
  const median = (list) => [...list].sort((a, b) => a - b)[list.length >> 1];
  const timed = async (count, work) => {
    const times = [];
    for (let i = 0; i < count; i += 1) {
      const start = performance.now();
      await work(i);
      times.push(performance.now() - start);
    }
    return { first: +times[0].toFixed(1), median: +median(times.slice(1)).toFixed(1) };
  };
  const token = (i) => 1000 + ((i * 7919) % 50000);
  const prompt = (n, salt) => Array.from({ length: n }, (_, i) => token(i + salt));
  const out = {};
  // A card that was idle takes a second of work to raise its clock.
  for (const end = performance.now() + 1500; performance.now() < end;) await semif.logits([prompt(150, 1)], [32, 33]);
  for (const [n, count] of [[150, 10], [512, 6], [2048, 4]]) out[`pp${n}_ms`] = (await timed(count, (i) => semif.logits([prompt(n, i)], [32, 33]))).median;
  const shared = await timed(6, (i) => {
    const state = prompt(1812, 5 + 31 * i);
    return semif.read([{ prompts: Array.from({ length: 21 }, (_, q) => [...state, ...prompt(78, 3000 + 100 * q)]), prefix: 1812 }], [32, 33]);
  });
  [out.shared_ms, out.shared_first_ms] = [shared.median, shared.first];
  out.longest_main_task_ms = Math.round(longest.task);
  return out;
}

let fine = true;
for (const name of fs.readdirSync(references).filter((name) => name.startsWith('full-') && name.endsWith('.json'))) {
  const want = JSON.parse(fs.readFileSync(path.join(references, name)));
  const column = (row) => row.labels.llama_f32 ?? row.labels.np32;
  const rows = want.rows.filter((row) => row.labels && column(row)).map((row) => ({ tokens: row.tokens, wanted: column(row) }));
  for (const precision of ['fast', 'exact']) {
    const page = await openPage(browser, `${server.url}/page/?test`);
    page.setDefaultTimeout(300_000);
    await page.waitForFunction(() => window.semif);
    try {
      const before = await used();
      let most = before;
      const watch = setInterval(async () => { most = Math.max(most, await used()); }, 300);
      const out = await page.evaluate(load, { url: `${server.url}/models/${want.file}`, rows, labels: want.label_ids, precision }).finally(() => clearInterval(watch));
      const loaded = await used();
      Object.assign(out, await page.evaluate(measure));
      // Of the card, the browser's own included.
      out.card_mb = { before, most_while_loading: most, loaded, after: await used() };
      fine = fine && (precision !== 'exact' || (rows.length > 0 && out.off < 2e-2 && out.same_argmax));
      console.log(JSON.stringify({ model: want.model, rows: rows.length, ...out }));
    } catch (error) {
      fine = false;
      console.log(`${want.model} ${precision}: ${error}`);
    }
    await page.close();
  }
}
await browser.close();
await server.close();
process.exit(fine ? 0 : 1);
