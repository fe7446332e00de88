// Trouble: each kind says in words what happened and what can be done.
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { check, equal, openBrowser, openPage } from './harness.mjs';
import { PATIENCE, TINY, loadFile, withPage } from './page.mjs';

const notice = async (page) => {
  await page.waitForSelector('.notice', { timeout: PATIENCE });
  return page.locator('.notice').first().innerText();
};

export default function (world) {
  const { models, model, server } = world;
  const temporary = fs.mkdtempSync(path.join(os.tmpdir(), 'semif-files-'));
  process.on('exit', () => fs.rmSync(temporary, { recursive: true, force: true }));
  const file = (name, bytes) => {
    const place = path.join(temporary, name);
    fs.writeFileSync(place, bytes);
    return place;
  };
  return {
    'a file that is no model': () => withPage(world, async (page) => {
      await page.setInputFiles('#file', file('holiday.gguf', '<html>not a model</html>'));
      check(/holiday\.gguf is not a GGUF model file/.test(await notice(page)), await notice(page));
      equal(await page.locator('#kept li', { hasText: 'holiday.gguf' }).count(), 0, 'it is not kept');
    }),

    'a truncated model': () => withPage(world, async (page) => {
      const whole = fs.readFileSync(path.join(models, TINY));
      await page.setInputFiles('#file', file('short.gguf', whole.subarray(0, whole.length >> 1)));
      const words = await notice(page);
      check(/does not run here/.test(words), words);
      await page.locator('#kept li', { hasText: 'short.gguf' }).getByText('Delete').click();
      await page.locator('#kept li', { hasText: 'short.gguf' }).waitFor({ state: 'detached' });
      await loadFile(page, models);
      return words.split('\n').filter(Boolean)[1];
    }),

    'an address with nothing behind it': () => withPage(world, async (page) => {
      await page.fill('#url', model('absent.gguf'));
      await page.click('.address button');
      check(/no such file/.test(await notice(page)), await notice(page));
    }, { quiet: false }),

    'a host that cannot be reached': () => withPage(world, async (page) => {
      await page.fill('#url', 'http://127.0.0.1:9/model.gguf');
      await page.click('.address button');
      check(/could not be reached/.test(await notice(page)), await notice(page));
    }, { quiet: false, foreign: true }),

    'a prompt over the budget': () => withPage(world, async (page) => {
      await loadFile(page, models);
      await page.fill('#state', 'many words '.repeat(20_000));
      await page.waitForSelector('.count.over', { timeout: PATIENCE });
      await page.click('#read');
      await page.waitForSelector('.lane.read .verdict-line.bad', { timeout: PATIENCE });
      const words = await page.locator('.lane.read .verdict-line.bad').innerText();
      equal(await page.locator('#verdict').innerText(), 'Reading failed', 'the verdict');
      check((await page.locator('#compared').innerText()).includes(words), 'the reason below it');
      return words;
    }),

    'no adapter': async () => {
      const browser = await openBrowser({ flags: [] });
      try {
        const page = await openPage(browser, world.home);
        const words = await notice(page);
        check(/No GPU was offered|no WebGPU/.test(words), words);
        check(await page.locator('#file').isDisabled(), 'no file can be chosen');
        check(!/estimate/.test(await page.locator('.ladder').innerText()), 'no word on an estimate that is not there');
        return words.split('\n')[0];
      } finally {
        await browser.close();
      }
    },

    'an insecure address, where browsers have neither WebGPU nor storage': async () => {
      const browser = await openBrowser({ flags: ['--enable-unsafe-webgpu', '--use-webgpu-adapter=swiftshader', '--host-resolver-rules=MAP semif.test 127.0.0.1'] });
      try {
        const page = await openPage(browser, `http://semif.test:${server.port}/some/folder/`);
        const words = await notice(page);
        check(/no WebGPU/.test(words) && /https/.test(words), words);
        equal(page.faults.filter((fault) => /panicked|unreachable/.test(fault)), [], 'crashes');
      } finally {
        await browser.close();
      }
    },
  };
}
