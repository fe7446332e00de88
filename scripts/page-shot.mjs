// Takes the README's picture of the page with a real answer in it, and looks at the page at three widths in both themes.
//
//   NODE_PATH=... node scripts/page-shot.mjs DIST MODEL.gguf FOLDER [preset]
//
// Writes page.png (1280 px, light) and shot-WIDTH-THEME.png with the same answer. Environment as for tests/browser/run.mjs.
import fs from 'node:fs';
import path from 'node:path';
import { openBrowser, openPage } from '../tests/browser/harness.mjs';
import { serve } from '../tests/browser/server.mjs';

const [dist, model, folder, preset = 'Support routing'] = process.argv.slice(2);
if (!folder) {
  console.error('usage: node scripts/page-shot.mjs DIST MODEL.gguf FOLDER [preset]');
  process.exit(2);
}
fs.mkdirSync(folder, { recursive: true });
const server = await serve({ '/': dist });
const browser = await openBrowser({ viewport: { width: 1280, height: 900 }, colorScheme: 'light' });
const page = await openPage(browser, `${server.url}/`);
page.setDefaultTimeout(1_800_000);
try {
  await page.waitForSelector('.device .good, .device .slow');
  await page.click(`.chip >> text=${preset}`);
  await page.setInputFiles('#file', model);
  await page.waitForSelector('#loaded');
  console.log((await page.locator('#loaded').innerText()).replace(/\n/g, ' | '));
  await page.click('#run');
  await page.waitForFunction(() => !document.querySelector('.verdict').classList.contains('empty'));
  console.log(await page.locator('#verdict').innerText());
  console.log((await page.locator('.lane.read .bars').innerText()).replace(/\s+/g, ' '));
  await page.evaluate(() => scrollTo(0, 0));
  await page.screenshot({ path: path.join(folder, 'page.png'), fullPage: true });
  for (const colorScheme of ['light', 'dark']) {
    for (const width of [390, 768, 1440]) {
      await page.emulateMedia({ colorScheme });
      await page.setViewportSize({ width, height: 900 });
      await page.screenshot({ path: path.join(folder, `shot-${width}-${colorScheme}.png`), fullPage: true });
    }
  }
} finally {
  await browser.close();
  await server.close();
}
