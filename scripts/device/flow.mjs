// The page's whole flow in real Chrome with one model: load by address, decide and compare, five questions, orders, reading while typing, the
// example set, the self-test. Prints one JSON object of what the page showed, wall times, and the longest task of the main thread.
//
//   node scripts/device/flow.mjs DIST MODEL.gguf [FOLDER for pictures]
//
// Environment as for tests/browser/run.mjs.
import path from 'node:path';
import { serve } from '../../tests/browser/server.mjs';
import { openBrowser, openPage } from '../../tests/browser/harness.mjs';

const [dist, model, folder] = process.argv.slice(2);
const server = await serve({ '/page/': dist, '/models/': path.dirname(model) });
const browser = await openBrowser({ viewport: { width: 1280, height: 900 }, colorScheme: 'light' });
await browser.addInitScript(() => {
  window.tasks = [];
  new PerformanceObserver((list) => { for (const entry of list.getEntries()) window.tasks.push(Math.round(entry.duration)); }).observe({ entryTypes: ['longtask'] });
});
const out = { model: path.basename(model) };
const page = await openPage(browser, `${server.url}/page/`);
page.setDefaultTimeout(240_000);

const words = async (selector) => (await page.locator(selector).first().innerText()).replace(/\s+/g, ' ').trim();
/** Runs a step; what it gives stands under its name, with its wall time and the longest task of the main thread meanwhile. */
async function step(name, work) {
  await page.evaluate(() => { window.tasks.length = 0; });
  const start = performance.now();
  try {
    const found = await work();
    out[name] = { seconds: +((performance.now() - start) / 1e3).toFixed(2), longest_task_ms: await page.evaluate(() => Math.max(0, ...window.tasks)), ...found };
    // The page must answer during all of it.
    if (out[name].longest_task_ms >= 50) process.exitCode = 1;
  } catch (error) {
    out[name] = { failed: String(error).slice(0, 300) };
    process.exitCode = 1;
  }
  console.log(name, JSON.stringify(out[name]));
}
const picture = async (name) => { if (folder) await page.screenshot({ path: path.join(folder, `${name}.png`), fullPage: true }); };
const answered = () => page.waitForFunction(() => !document.querySelector('.verdict').classList.contains('empty') && document.querySelector('#run'));
const clock = () => words('.lane.read .clock');

await step('start', async () => {
  await page.waitForSelector('.device .good, .device .slow');
  return { device: await words('summary') };
});
await step('load', async () => {
  await page.fill('#url', `${server.url}/models/${path.basename(model)}`);
  await page.click('.address button');
  await page.waitForSelector('#loaded');
  return { shown: await words('#loaded') };
});
await step('decide and compare', async () => {
  await page.click('.chip >> text=Support routing');
  await page.click('#run');
  await answered();
  await picture('decided');
  return { verdict: await words('#verdict'), direct: await clock(), written: await words('.lane.write .clock'), facts: await words('.lane.read .facts'), written_facts: await words('.lane.write .facts') };
});
await step('read ten times', async () => {
  const times = [];
  for (let i = 0; i < 10; i += 1) {
    await page.click('#read');
    await page.waitForFunction(() => document.querySelector('#read') && /ms|s$/.test(document.querySelector('.lane.read .clock').textContent));
    times.push(await clock());
  }
  return { direct: times };
});
await step('orders', async () => {
  await page.click('.check-order');
  await page.waitForFunction(() => /orders agree/.test(document.querySelector('.order').textContent));
  return { shown: await words('.order') };
});
await step('five questions', async () => {
  for (const text of ['Is it urgent?', 'Does the customer threaten to leave?', 'Is a refund due?', 'Was this reported before?']) {
    await page.click('.add');
    const question = page.locator('.question').last();
    await question.locator('textarea').first().fill(text);
    for (const [i, word] of ['yes', 'no'].entries()) await question.locator('.option-text').nth(i).fill(word);
  }
  await page.click('#read');
  await page.waitForFunction(() => document.querySelector('#read') && document.querySelectorAll('.lane.read .bars').length === 5);
  await picture('five');
  return { direct: await clock(), facts: await words('.lane.read .facts') };
});
await step('reading while typing', async () => {
  await page.click('.chip >> text=Policy rule');
  await page.check('#live');
  const settled = () => page.waitForFunction(() => document.querySelector('.lane.read .stream').textContent.startsWith('{') && document.querySelector('#read') && !document.querySelector('.lanes.stale'));
  await settled();
  const times = [];
  for (const text of [' Does it hold?', ' Really?', ' Who says so?']) {
    await page.locator('.question textarea').first().pressSequentially(text, { delay: 30 });
    await page.waitForTimeout(400);
    await settled();
    times.push(`${await clock()}, ${await words('.lane.read .facts dd')}`);
  }
  await page.uncheck('#live');
  return { times };
});
await step('evaluate the example set', async () => {
  await page.click('#example-set');
  await page.check('#orders');
  await page.click('#start-evaluation');
  await page.waitForFunction(() => document.querySelector('#start-evaluation') && document.querySelectorAll('.charts svg').length === 2);
  await picture('evaluated');
  return { table: await words('.scores') };
});
out.requests_after_loading = await words('#since-loading');
out.faults = page.faults;
await step('self-test', async () => {
  await page.goto(`${server.url}/page/?selftest`);
  await page.waitForFunction(() => /kernels compute/.test(document.querySelector('#selftest-verdict')?.textContent));
  return { verdict: await words('#selftest-verdict') };
});
console.log(JSON.stringify(out));
await browser.close();
await server.close();
