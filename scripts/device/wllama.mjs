// wllama beside this page, in the same browser on the same card and file: one answer letter after prompts of several lengths.
//
//   node scripts/device/wllama.mjs DIST WLLAMA MODEL...
//
// WLLAMA is the folder esm of the npm package @wllama/wllama. wllama needs 16-bit floats, which Chrome hides on NVIDIA's cards under Linux: it
// runs twice, with Chrome as it is and with them forced on. Prints one JSON object a model, program and browser.
import path from 'node:path';
import { serve } from '../../tests/browser/server.mjs';
import { WEBGPU, openBrowser, openPage } from '../../tests/browser/harness.mjs';

const [dist, wllama, ...models] = process.argv.slice(2);
const LENGTHS = [60, 150, 512, 1500];
const FORCED = '--enable-dawn-features=vulkan_enable_f16_on_nvidia';
const server = await serve({ '/page/': dist, '/wllama/': wllama, '/models/': path.dirname(path.resolve(models[0])) });

/** Runs in the page: wllama's chat completion of one token, the grammar leaving it two letters. */
async function theirs({ url, lengths }) {
  const { Wllama } = await import(new URL('/wllama/index.js', location.href).href);
  const engine = new Wllama({ default: new URL('/wllama/wasm/wllama.wasm', location.href).href }, { suppressNativeLog: true });
  let start = performance.now();
  await engine.loadModelFromUrl(url, { n_ctx: 4096, n_batch: 2048, n_gpu_layers: 999, useCache: false });
  const out = { load_s: +((performance.now() - start) / 1e3).toFixed(1) };
  const words = 'the quick service agent resets account password before customer billing refund ticket closes again'.split(' ');
  let seed = 1;
  const random = () => (seed = (seed * 1103515245 + 12345) & 0x7fffffff) / 0x7fffffff;
  for (const length of lengths) {
    const times = [];
    let tokens = 0;
    for (let i = 0; i < 5; i += 1) {
      const content = Array.from({ length }, () => words[Math.floor(random() * words.length)]).join(' ');
      start = performance.now();
      const made = await engine.createChatCompletion({ messages: [{ role: 'user', content }], max_tokens: 1, temperature: 0, cache_prompt: false, grammar: 'root ::= "A" | "B"' });
      times.push(performance.now() - start);
      tokens = made.usage?.prompt_tokens ?? length;
      // A CPU would take minutes.
      if (performance.now() - start > 3000) break;
    }
    const kept = times.length > 1 ? times.slice(1) : times;
    out[`${tokens}_tokens_ms`] = +kept.sort((a, b) => a - b)[kept.length >> 1].toFixed(1);
    if (kept[0] > 3000) break;
  }
  return out;
}

/** Runs in the page: this engine's logits of two letters. */
async function ours({ url, lengths }) {
  let start = performance.now();
  const model = await window.semif.load(url, {});
  const out = { precision: model.precision, load_s: +((performance.now() - start) / 1e3).toFixed(1) };
  const prompt = (n, salt) => Array.from({ length: n }, (_, i) => 1000 + (((i + salt) * 7919) % 50000));
  for (const n of lengths) {
    const times = [];
    for (let i = 0; i < 5; i += 1) {
      start = performance.now();
      await window.semif.logits([prompt(n, i)], [32, 33]);
      times.push(performance.now() - start);
    }
    out[`${n}_tokens_ms`] = +times.slice(1).sort((a, b) => a - b)[2].toFixed(1);
  }
  return out;
}

for (const [words, flags] of [['as it is', []], ['16-bit floats forced on', [FORCED]]]) {
  const browser = await openBrowser({ flags: [...WEBGPU, ...flags] });
  for (const model of models) {
    const url = `${server.url}/models/${path.basename(model)}`;
    for (const [who, run] of [['wllama', theirs], ['semif', ours]]) {
      const page = await openPage(browser, `${server.url}/page/?test`);
      page.setDefaultTimeout(240_000);
      await page.waitForFunction(() => window.semif);
      // The page's own policy lets no other program in; wllama gets a bare page of the same server.
      if (who === 'wllama') await page.goto(`${server.url}/models/`).catch(() => {});
      const said = await page.evaluate(run, { url, lengths: LENGTHS }).catch((error) => ({ error: String(error).slice(0, 300) }));
      console.log(JSON.stringify({ model: path.basename(model), who, chrome: words, ...said }));
      await page.close();
    }
  }
  await browser.close();
}
await server.close();
