// Models in the browser's storage: kept, found again, resumed, used without being kept, deleted.
import { createHash } from 'node:crypto';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { serve } from './server.mjs';
import { split } from './split.mjs';
import { check, equal } from './harness.mjs';
import { PATIENCE, TINY, loadFile, withPage } from './page.mjs';

const kept = (page) => page.locator('#kept .kept-name').allInnerTexts();

async function download(page, url) {
  await page.fill('#url', url);
  await page.click('.address button');
}

/** Deletes every kept model. */
export async function forgetAll(page) {
  await page.waitForSelector('.device .good, .device .slow');
  while (await page.locator('#kept li').count()) {
    const before = await page.locator('#kept li').count();
    await page.locator('#kept li').first().getByText('Delete').click();
    await page.waitForFunction((before) => document.querySelectorAll('#kept li').length < before, before);
  }
}

export default function (world) {
  const { models, model, server } = world;
  const size = (name) => fs.statSync(path.join(models, name)).size;
  return {
    'a picked file is kept, found after a reload, used, and deleted': () => withPage(world, async (page) => {
      await page.waitForTimeout(300);
      await forgetAll(page);
      await loadFile(page, models);
      await page.reload();
      await page.waitForSelector('#kept li');
      equal(await kept(page), [TINY], 'kept files');
      check((await page.locator('#kept .kept-size').innerText()).includes('MB'), 'size');
      const sha256 = createHash('sha256').update(fs.readFileSync(path.join(models, TINY))).digest('hex');
      const note = await page.evaluate(async (name) => {
        const folder = await (await navigator.storage.getDirectory()).getDirectoryHandle('models');
        return JSON.parse(await (await (await folder.getFileHandle(`${name}.json`)).getFile()).text());
      }, TINY);
      equal(note.sha256, sha256, 'SHA-256 of the stored bytes');
      await page.click('#kept >> text=Use');
      await page.waitForSelector('#loaded', { timeout: PATIENCE });
      await page.click('text=Change model');
      await page.locator('#kept').getByText('Delete').click();
      await page.waitForSelector('#kept', { state: 'detached' });
      await page.reload();
      await page.waitForSelector('.device .good, .device .slow');
      await page.waitForTimeout(300);
      equal(await page.locator('#kept').count(), 0, 'kept files after deleting');
      const left = await page.evaluate(async () => {
        const names = [];
        const folder = await (await navigator.storage.getDirectory()).getDirectoryHandle('models');
        for await (const name of folder.keys()) names.push(name);
        return names;
      });
      equal(left, [], 'files left in the storage');
    }),

    'a download goes on after its connection breaks': () => withPage(world, async (page) => {
      await forgetAll(page);
      const from = server.log.length;
      await download(page, model(TINY, '?cut=2500000&pace=4000000'));
      await page.waitForSelector('#loaded', { timeout: PATIENCE });
      const asked = server.log.slice(from).filter((entry) => entry.url.includes('cut='));
      equal(asked.length, 2, 'requests');
      check(/^bytes=0-\d+$/.test(asked[0].range), `range of the first request: ${asked[0].range}`);
      check(/^bytes=[1-9]\d*-\d+$/.test(asked[1].range), `range of the second request: ${asked[1].range}`);
      await forgetAllWithModel(page);
    }, { quiet: false }),

    'a cancelled download goes on after a reload': () => withPage(world, async (page) => {
      await forgetAll(page);
      const address = model('qwen3-tiny-F16.gguf', '?pace=3000000');
      await download(page, address);
      await page.waitForFunction(() => /^[2-9][.0-9]* MB of/.test(document.querySelector('.tile.now .tile-words')?.textContent), null, { timeout: 30_000 });
      await page.click('#cancel-load');
      await page.waitForSelector('#kept li');
      check((await page.locator('#kept .kept-size').innerText()).includes('not complete'), 'the part is listed as one');
      await page.reload();
      await page.waitForSelector('#kept li');
      const from = server.log.length;
      await page.click('#kept >> text=Go on');
      await page.waitForSelector('#loaded', { timeout: PATIENCE });
      // The service worker looks for its own new version at the same time.
      const asked = server.log.slice(from).filter((entry) => entry.url.startsWith('/models/'));
      check(asked[0].ifRange, 'the request names the version that it goes on with');
      const ranges = asked.map((entry) => entry.range);
      const start = Number(/^bytes=(\d+)-\d+$/.exec(ranges[0])?.[1]);
      check(start > 1_000_000 && start < size('qwen3-tiny-F16.gguf'), `went on at ${ranges}`);
      await forgetAllWithModel(page);
      return `went on at ${(start / 1e6).toFixed(1)} MB`;
    }),

    'a host whose file changes, is not the one that was promised, or comes in wrong parts': () => withPage(world, async (page) => {
      await forgetAll(page);
      const name = 'qwen3-tiny-F16.gguf';
      const inFolder = (use, given) => page.evaluate(`(async (given) => {
        const folder = await (await navigator.storage.getDirectory()).getDirectoryHandle('models');
        return (${use})(folder, given);
      })(${JSON.stringify(given)})`);
      const part = async () => {
        await download(page, model(name, '?pace=3000000&bare=1'));
        await page.waitForFunction(() => /^[4-7][.0-9]* MB of/.test(document.querySelector('.tile.now .tile-words')?.textContent), null, { timeout: 60_000 });
        await page.click('#cancel-load');
        await page.waitForSelector('#kept li');
      };
      const words = async () => {
        await page.waitForSelector('.notice', { timeout: PATIENCE });
        return page.locator('.notice').first().innerText();
      };
      // Shorter than what is here already, and it is as if nothing had been here.
      await part();
      const other = path.join(models, 'qwen3-tiny-Q4_0.gguf');
      server.instead[`/models/${name}`] = { file: other };
      try {
        await page.click('#kept >> text=Go on');
        await page.waitForSelector('#loaded', { timeout: PATIENCE });
      } finally {
        delete server.instead[`/models/${name}`];
      }
      const kept = await inFolder(async (folder, name) => {
        const read = async (name) => (await folder.getFileHandle(name)).getFile();
        return [(await read(name)).size, JSON.parse(await (await read(`${name}.json`)).text()).sha256];
      }, name);
      equal(kept, [fs.statSync(other).size, createHash('sha256').update(fs.readFileSync(other)).digest('hex')], 'the shorter file');
      await forgetAllWithModel(page);
      // What was promised for a download is kept with it, for whoever goes on.
      await part();
      await inFolder(async (folder, name) => {
        const file = await folder.getFileHandle(`${name}.json`);
        const note = JSON.parse(await (await file.getFile()).text());
        const out = await file.createWritable();
        await out.write(JSON.stringify({ ...note, promised: '0'.repeat(64) }));
        await out.close();
      }, name);
      await page.click('#kept >> text=Go on');
      check(/not the file that was published/.test(await words()), await words());
      await page.waitForFunction(() => !document.querySelector('#kept'));
      await page.click('text=Close this message');
      await download(page, model(TINY, '?shift=32'));
      check(/another part of the file/.test(await words()), await words());
    }, { quiet: false }),

    'parts in parallel, paused, gone on with, and hashed on the way': () => withPage(world, async (page) => {
      await forgetAll(page);
      const from = server.log.length;
      const asked = () => server.log.slice(from).filter((entry) => entry.url.includes('smollm2'));
      await download(page, model('smollm2.gguf', '?pace=8000000'));
      await page.waitForFunction(() => /^([3-9]\d|1\d\d)[.\d]* MB of/.test(document.querySelector('.tile.now .tile-words')?.textContent), null, { timeout: PATIENCE });
      check(new Set(asked().map((entry) => entry.range)).size >= 4, `requests so far: ${asked().map((entry) => entry.range)}`);
      await page.click('#pause-load');
      await page.waitForFunction(() => /^paused at/.test(document.querySelector('.tile .tile-words').textContent));
      // The worker hears of it a moment later.
      await page.waitForTimeout(2000);
      const before = asked().length;
      await page.waitForTimeout(1500);
      equal(asked().length, before, 'requests while it is paused');
      await page.click('#pause-load');
      await page.waitForFunction(() => document.querySelectorAll('.tile')[2].classList.contains('now'), null, { timeout: PATIENCE });
      // The software adapter would take minutes; on a quick machine it may be there before the click.
      await page.click('#cancel-load', { timeout: 10_000 }).catch(() => {});
      await page.waitForFunction(() => !document.querySelector('#loading'), null, { timeout: PATIENCE });
      const note = await page.evaluate(async () => {
        const folder = await (await navigator.storage.getDirectory()).getDirectoryHandle('models');
        return JSON.parse(await (await (await folder.getFileHandle('smollm2.gguf.json')).getFile()).text());
      });
      equal(note.sha256, createHash('sha256').update(fs.readFileSync(path.join(models, 'smollm2.gguf'))).digest('hex'), 'SHA-256 of what arrived');
      // Nothing that was there is fetched twice: the ranges asked for after the pause begin behind what was stored.
      const listed = await page.locator('#requests').textContent();
      check(/smollm2\.gguf/.test(listed), `the page lists its requests: ${listed}`);
      if (await page.locator('text=Change model').count()) await page.click('text=Change model');
      await forgetAll(page);
      return `${asked().length} requests`;
    }),

    'kernels are compiled while bytes arrive': () => withPage(world, async (page) => {
      await forgetAll(page);
      await download(page, model('smollm2.gguf', '?pace=600000'));
      const tile = (i) => page.locator('.tile').nth(i);
      await page.waitForSelector('.tile.now');
      // All of them, or the download was quicker.
      await page.waitForFunction(() => {
        const tiles = document.querySelectorAll('.tile');
        return !tiles.length || tiles[3].classList.contains('done') || !tiles[0].classList.contains('now');
      }, null, { timeout: PATIENCE });
      const [fetching, compiled] = [await tile(0).getAttribute('class'), await tile(3).getAttribute('class')];
      equal([fetching, compiled], ['tile now', 'tile done'], 'tiles of the download and of the kernels');
      const words = `${await tile(3).innerText()} at ${await tile(0).innerText()}`.replace(/\s+/g, ' ');
      await page.click('#cancel-load');
      await page.waitForSelector('#kept li');
      await forgetAll(page);
      return words;
    }),

    'a split model from disk is one model': () => withPage(world, async (page) => {
      await forgetAll(page);
      const files = partsOf(models);
      await page.setInputFiles('#file', [files[2], files[0]]);
      await page.waitForSelector('.notice');
      const words = await page.locator('.notice').innerText();
      check(/part 2 of 3, tiny-00002-of-00003\.gguf, was not chosen/.test(words), words);
      equal(await page.locator('#kept li').count(), 0, 'kept parts of a model that is not complete');
      await page.setInputFiles('#file', [files[2], files[0], files[1]]);
      await page.waitForSelector('#loaded', { timeout: PATIENCE });
      await page.reload();
      await page.waitForSelector('#kept li');
      equal(await kept(page), ['tiny-00001-of-00003.gguf'], 'kept models');
      await page.click('#kept >> text=Use');
      await page.waitForSelector('#loaded', { timeout: PATIENCE });
      const logits = (url) => page.evaluate(async (url) => {
        if (url) await window.semif.load(url);
        return (await window.semif.logits([[9, 8, 7, 6, 5]], [32, 33, 34, 35]))[0];
      }, url);
      const found = await logits();
      equal(found, await logits(model(TINY)), 'logits of the parts and of the whole');
      await forgetAllWithModel(page);
      const left = await page.evaluate(async () => {
        const names = [];
        for await (const name of (await (await navigator.storage.getDirectory()).getDirectoryHandle('models')).keys()) names.push(name);
        return names;
      });
      equal(left, [], 'files left in the storage');
    }),

    'a split model from another host, which the page itself may not ask': () => withPage(world, async (page) => {
      await forgetAll(page);
      const other = await serve({ '/parts/': path.dirname(partsOf(models)[0]) });
      try {
        // The address of any part stands for all.
        const address = `${other.url}/parts/tiny-00002-of-00003.gguf?open=1`;
        await download(page, address);
        await page.waitForSelector('#loaded', { timeout: PATIENCE });
        equal(await page.locator('#since-loading').innerText(), 'Since the model was loaded: no request at all.', 'requests after loading');
        const asked = new Set(other.log.map((entry) => entry.url.split('?')[0]));
        equal([...asked].sort(), [1, 2, 3].map((i) => `/parts/tiny-0000${i}-of-00003.gguf`), 'what was asked for');
        const refused = await page.evaluate((address) => fetch(address).then(() => 'answered', (error) => error.name), address);
        equal(refused, 'TypeError', 'a request of the page itself to another host');
        await forgetAllWithModel(page);
      } finally {
        await other.close();
      }
    }, { foreign: true, quiet: false }),

    'a host without ranges works, too': () => withPage(world, async (page) => {
      await forgetAll(page);
      await download(page, model(TINY, '?plain=1'));
      await page.waitForSelector('#loaded', { timeout: PATIENCE });
      await forgetAllWithModel(page);
    }),

    'two models side by side, switched without a reload': () => withPage(world, async (page) => {
      await forgetAll(page);
      await loadFile(page, models);
      await page.click('text=Change model');
      await page.setInputFiles('#file', path.join(models, 'minicpm5-tiny-real.gguf'));
      await page.waitForFunction(() => /minicpm5/i.test(document.querySelector('#loaded')?.textContent ?? ''), null, { timeout: PATIENCE });
      await page.click('text=Change model');
      equal(await kept(page), ['minicpm5-tiny-real.gguf', TINY], 'kept files');
      await page.locator('#kept li', { hasText: TINY }).getByText('Use').click();
      await page.waitForFunction(() => /qwen3/i.test(document.querySelector('#loaded')?.textContent ?? ''), null, { timeout: PATIENCE });
      await forgetAllWithModel(page);
    }),
  };
}

/** The tiny model in three parts. */
function partsOf(models) {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'semif-parts-'));
  process.on('exit', () => fs.rmSync(folder, { recursive: true, force: true }));
  return split(fs.readFileSync(path.join(models, TINY)), 3).map((part, i) => {
    const file = path.join(folder, `tiny-0000${i + 1}-of-00003.gguf`);
    fs.writeFileSync(file, part);
    return file;
  });
}

async function forgetAllWithModel(page) {
  await page.click('text=Change model');
  await forgetAll(page);
}
