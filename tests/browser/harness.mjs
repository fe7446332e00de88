// Starting Chromium as the tests need it, and running named tests one after the other.
import { createRequire } from 'node:module';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';

// require() looks into NODE_PATH, import does not.
const { chromium } = createRequire(import.meta.url)('playwright-core');

const QUIET = ['--no-sandbox', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync', '--no-proxy-server'];
/** Chromium's own software adapter, so that no GPU is needed. SEMIF_CHROMIUM_FLAGS replaces it, for example on a machine with one. */
export const WEBGPU = (process.env.SEMIF_CHROMIUM_FLAGS ?? '--enable-unsafe-webgpu --use-webgpu-adapter=swiftshader').split(' ').filter(Boolean);

/** A browser with a profile of its own, so that its storage survives a reload. `flags` replaces the WebGPU flags. */
export async function openBrowser({ flags = WEBGPU, ...options } = {}) {
  const profile = fs.mkdtempSync(path.join(os.tmpdir(), 'semif-browser-'));
  const context = await chromium.launchPersistentContext(profile, {
    executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
    args: [...QUIET, ...flags],
    viewport: { width: 1280, height: 900 },
    ...options,
  });
  const close = context.close.bind(context);
  context.close = async () => {
    await close();
    fs.rmSync(profile, { recursive: true, force: true });
  };
  return context;
}

/** A page that collects what goes wrong on it. `draft` is what was typed on an earlier visit; what other tests typed is gone then. */
export async function openPage(context, url, draft) {
  const page = await context.newPage();
  // A machine that builds something else meanwhile draws a frame when it can.
  page.setDefaultTimeout(120_000);
  // Once for each tab: a reload must find what was typed since. The storage is all tests', a tab's own storage is not.
  if (draft) {
    await page.addInitScript((draft) => {
      if (sessionStorage.getItem('begun')) return;
      sessionStorage.setItem('begun', 'yes');
      localStorage.setItem('semif.draft', draft);
    }, JSON.stringify(draft));
  }
  page.faults = [];
  page.requests = [];
  page.on('console', (message) => { if (message.type() === 'error') page.faults.push(message.text()); });
  page.on('pageerror', (error) => page.faults.push(String(error)));
  page.on('request', (request) => page.requests.push(request.url()));
  await page.goto(url);
  return page;
}

export function check(condition, words) {
  if (!condition) throw new Error(words);
}

export function equal(found, wanted, words) {
  const [a, b] = [JSON.stringify(found), JSON.stringify(wanted)];
  if (a !== b) throw new Error(`${words}: found ${a}, wanted ${b}`);
}

/** Refuses serious accessibility faults of the page as it stands, in both themes. */
export async function accessible(page, what) {
  const source = fs.readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
  const found = [];
  await page.evaluate(source);
  for (const colorScheme of ['light', 'dark']) {
    await page.emulateMedia({ colorScheme, reducedMotion: 'reduce' });
    const { violations } = await page.evaluate(() => window.axe.run());
    found.push(...violations.filter((v) => ['serious', 'critical'].includes(v.impact)).map((v) => `${colorScheme}: ${v.id} at ${v.nodes.map((node) => node.target).join(', ')}`));
  }
  await page.emulateMedia({ colorScheme: null, reducedMotion: null });
  equal(found, [], `axe, ${what}`);
}

/** Runs {name: test}, all or those whose name contains a part of `only` (a|b|c); a test that throws a Skip is skipped. Prints the closing line and sets the exit code. */
export async function runAll(tests, only) {
  let [passed, failed, skipped] = [0, 0, 0];
  for (const [name, test] of Object.entries(tests)) {
    if (only && !only.split('|').some((part) => name.includes(part))) continue;
    const start = Date.now();
    const seconds = () => `${((Date.now() - start) / 1000).toFixed(1)} s`;
    try {
      const words = await test();
      passed += 1;
      console.log(`ok    ${name} (${seconds()})${words ? `: ${words}` : ''}`);
    } catch (error) {
      if (error instanceof Skip) {
        skipped += 1;
        console.log(`skip  ${name}: ${error.message}`);
      } else {
        failed += 1;
        console.log(`FAIL  ${name} (${seconds()})\n      ${String(error.stack ?? error).split('\n').slice(0, 12).join('\n      ')}`);
      }
    }
  }
  console.log(`${passed} passed, ${failed} failed${skipped ? `, ${skipped} skipped` : ''}`);
  return failed === 0 && passed > 0;
}

export class Skip extends Error {}
