// Browser tests: the built page in Chromium, on its software adapter, with tiny models and one real one.
//
//   node tests/browser/run.mjs DIST [part of a test's name, or several: a|b]
//
// Environment: SEMIF_TEST_MODELS (folder of the GGUF files), NODE_PATH (where playwright-core is), CHROMIUM,
// SEMIF_CHROMIUM_FLAGS (instead of the software adapter), SEMIF_BIN (the native program, for the native comparison),
// SEMIF_SHOTS (a folder for screenshots).
import { serve } from './server.mjs';
import { openBrowser, runAll } from './harness.mjs';
import bits from './bits.mjs';
import evaluate from './evaluate.mjs';
import extras from './extras.mjs';
import faults from './faults.mjs';
import logits from './logits.mjs';
import page from './page.mjs';
import storage from './storage.mjs';
import trouble from './trouble.mjs';

const [dist, only] = process.argv.slice(2);
const models = process.env.SEMIF_TEST_MODELS;
if (!dist || !models) {
  console.error('usage: SEMIF_TEST_MODELS=folder node tests/browser/run.mjs DIST [part of a name]');
  process.exit(2);
}
// In a subfolder, because a page that works only at the root of a host works on few hosts.
const server = await serve({ '/some/folder/': dist, '/models/': models });
// The service worker answers from what it has kept, and the tests want to see what the page asks for. It has a test of its own.
const browser = await openBrowser({ serviceWorkers: 'block' });
const world = { server, browser, dist, models, home: `${server.url}/some/folder/`, model: (name, query = '') => `${server.url}/models/${name}${query}` };
const tests = Object.assign({}, ...[page, storage, extras, evaluate, logits, bits, trouble, faults].map((part) => part(world)));
// Minutes each where kernels are compiled on the CPU: by name, or with everything on a GPU (scripts/device/check.sh chrome).
if (!only && process.env.SEMIF_BITS !== 'full') {
  const dear = [
    'evaluate two models, stop, and go on', 'a tab that is hidden during a run', 'logits of real prompts of Qwen2.5-Coder, here and natively',
    'bits of questions, orders and open states, qwen35-tiny-real', 'clicks are answered while a batch runs, qwen35-tiny-real',
  ];
  for (const name of dear) delete tests[name];
}
const fine = await runAll(tests, only);
await browser.close();
await server.close();
process.exit(fine ? 0 : 1);
