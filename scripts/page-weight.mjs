// What a first visit costs: bytes of the page, compressed, and the time to its first paint on a slow machine.
//
//   NODE_PATH=... node scripts/page-weight.mjs DIST [limit in MB]
//
// DIST from `scripts/build-web --profile web --opt DIST`. Exit code 1 where the compressed bytes exceed the limit (1.5 MB). Times are medians of
// five visits with an empty cache, the processor slowed down as Chromium's developer tools do.
import fs from 'node:fs';
import path from 'node:path';
import zlib from 'node:zlib';
import { openBrowser } from '../tests/browser/harness.mjs';
import { serve } from '../tests/browser/server.mjs';

const [dist, limit = '1.5'] = process.argv.slice(2);
if (!dist) {
  console.error('usage: node scripts/page-weight.mjs DIST [limit in MB]');
  process.exit(2);
}
const sum = [0, 0, 0];
const line = (name, sizes) => console.log(`${name.padEnd(18)} ${sizes.map((bytes) => `${(bytes / 1e3).toFixed(1)} kB`.padStart(12)).join('')}`);
console.log(`${''.padEnd(18)} ${['plain', 'gzip -9', 'brotli 11'].map((name) => name.padStart(12)).join('')}`);
for (const name of fs.readdirSync(dist).sort()) {
  const bytes = fs.readFileSync(path.join(dist, name));
  const brotli = zlib.brotliCompressSync(bytes, { params: { [zlib.constants.BROTLI_PARAM_SIZE_HINT]: bytes.length, [zlib.constants.BROTLI_PARAM_LGWIN]: 24 } });
  const sizes = [bytes.length, zlib.gzipSync(bytes, { level: 9 }).length, brotli.length];
  sizes.forEach((size, i) => { sum[i] += size; });
  line(name, sizes);
}
line('all', sum);

const server = await serve({ '/': dist });
const median = (values) => values.sort((a, b) => a - b)[Math.floor(values.length / 2)];
try {
  for (const rate of [1, 4, 6]) {
    const [paints, uses] = [[], []];
    for (let i = 0; i < 5; i += 1) {
      const browser = await openBrowser();
      const page = await browser.newPage();
      const session = await browser.newCDPSession(page);
      await session.send('Emulation.setCPUThrottlingRate', { rate });
      await page.goto(`${server.url}/`);
      await page.waitForSelector('#run', { timeout: 120_000 });
      uses.push(await page.evaluate(() => performance.now()));
      paints.push(await page.evaluate(() => performance.getEntriesByName('first-contentful-paint')[0].startTime));
      await browser.close();
    }
    console.log(`processor ${rate} times slower: first paint ${median(paints).toFixed(0)} ms, page usable ${median(uses).toFixed(0)} ms`);
  }
} finally {
  await server.close();
}
if (sum[1] > Number(limit) * 1e6) {
  console.log(`${(sum[1] / 1e6).toFixed(2)} MB with gzip exceed the limit of ${limit} MB`);
  process.exit(1);
}
