// Takes the README's picture of the page with a real answer in it, and pictures of every state of the page at three widths in both themes.
//
//   NODE_PATH=... node scripts/page-shot.mjs DIST MODEL.gguf FOLDER [preset] [states]
//
// States: answer (page.png at 1280 px and answer-WIDTH-THEME.png), start, loading, five (questions), evaluation, selftest, bench; several with commas,
// `answer` alone by default. Environment as for tests/browser/run.mjs; SEMIF_LIMIT=48 cuts the written answer, which takes long on a software adapter.
import fs from 'node:fs';
import path from 'node:path';
import { openBrowser, openPage } from '../tests/browser/harness.mjs';
import { serve } from '../tests/browser/server.mjs';

const [dist, model, folder, preset = 'Support routing', states = 'answer'] = process.argv.slice(2);
if (!folder) {
  console.error('usage: node scripts/page-shot.mjs DIST MODEL.gguf FOLDER [preset] [states]');
  process.exit(2);
}
fs.mkdirSync(folder, { recursive: true });
const server = await serve({ '/': dist, '/models/': path.dirname(model) });
const browser = await openBrowser({ viewport: { width: 1280, height: 900 }, colorScheme: 'light' });

/** Pictures of the page as it is, or of the one section that matters. Says where it would scroll sideways. */
async function shots(page, name, section) {
  await page.evaluate(() => scrollTo(0, 0));
  for (const colorScheme of ['light', 'dark']) {
    for (const width of [390, 768, 1440]) {
      await page.emulateMedia({ colorScheme });
      await page.setViewportSize({ width, height: 900 });
      const file = path.join(folder, `${name}-${width}-${colorScheme}.png`);
      if (section) await page.locator(section).first().screenshot({ path: file });
      else await page.screenshot({ path: file, fullPage: true });
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      if (wide > 0) console.log(`${name} at ${width} px scrolls sideways by ${wide} px`);
    }
  }
}

async function open(query = '') {
  const page = await openPage(browser, `${server.url}/${query}`);
  page.setDefaultTimeout(1_800_000);
  await page.waitForSelector('.device .good, .device .slow');
  return page;
}

async function load(page) {
  await page.setInputFiles('#file', model);
  await page.waitForSelector('#loaded');
}

const make = {
  async start() {
    await shots(await open(), 'start');
  },
  async loading() {
    const page = await open();
    await page.fill('#url', `${server.url}/models/${path.basename(model)}?pace=50000`);
    await page.click('.address button');
    await page.waitForFunction(() => / of /.test(document.querySelector('.tile-words')?.textContent));
    await shots(page, 'loading', '[aria-labelledby=model-title]');
    // A quick machine may have loaded it by now.
    await page.click('#cancel-load', { timeout: 2000 }).catch(() => {});
  },
  async answer() {
    const page = await open(process.env.SEMIF_LIMIT ? `?test&limit=${process.env.SEMIF_LIMIT}` : '');
    await page.click(`.chip >> text=${preset}`);
    await load(page);
    console.log((await page.locator('#loaded').innerText()).replace(/\n/g, ' | '));
    await page.click('#run');
    await page.waitForFunction(() => !document.querySelector('.verdict').classList.contains('empty'));
    console.log(await page.locator('#verdict').innerText());
    console.log((await page.locator('.lane.read .bars').innerText()).replace(/\s+/g, ' '));
    await page.evaluate(() => scrollTo(0, 0));
    await page.screenshot({ path: path.join(folder, 'page.png'), fullPage: true });
    await shots(page, 'answer');
  },
  async five() {
    const page = await open('?test&limit=12');
    await page.click(`.chip >> text=${preset}`);
    for (const words of ['Is it urgent?', 'Does the customer threaten to leave?', 'Is a refund due?', 'Was this reported before?']) {
      await page.click('.add');
      const question = page.locator('.question').last();
      await question.locator('textarea').first().fill(words);
      for (const [i, word] of ['yes', 'no'].entries()) await question.locator('.option-text').nth(i).fill(word);
    }
    await load(page);
    await page.click('#run');
    await page.waitForFunction(() => !document.querySelector('.verdict').classList.contains('empty'));
    await shots(page, 'five');
  },
  async evaluation() {
    const page = await open();
    await load(page);
    const row = (i) => JSON.stringify({ id: `r${i}`, state: `Note ${i}.`, question: 'Keep it?', options: [{ id: 'keep', description: 'yes' }, { id: 'drop', description: 'no' }], label: i % 3 ? 'keep' : 'drop' });
    await page.setInputFiles('#rows', { name: 'notes.jsonl', mimeType: 'application/jsonl', buffer: Buffer.from(Array.from({ length: 12 }, (_, i) => row(i)).join('\n')) });
    await page.click('#start-evaluation');
    await page.waitForFunction(() => document.querySelector('#start-evaluation') && document.querySelectorAll('.charts svg').length === 2);
    await shots(page, 'evaluation', '#evaluate');
  },
  async selftest() {
    const page = await open('?selftest');
    await page.waitForFunction(() => /kernels compute/.test(document.querySelector('#selftest-verdict')?.textContent));
    await shots(page, 'selftest', '[aria-labelledby=model-title]');
  },
  async bench() {
    const page = await open('?bench=quick');
    await load(page);
    await page.click('#start-bench');
    await page.waitForFunction(() => document.querySelector('#bench-progress').textContent === 'Everything is measured.');
    await shots(page, 'bench', '#bench');
  },
};
try {
  for (const state of states.split(',')) {
    await make[state]();
    for (const page of browser.pages().slice(1)) await page.close();
  }
} finally {
  await browser.close();
  await server.close();
}
