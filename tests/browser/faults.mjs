// Faults that happen in the middle: each is injected, has words and a way out, and loses nothing that was typed.
import { check, equal, openBrowser, openPage } from './harness.mjs';
import { PATIENCE, SHORT, TINY, loadFile, withPage } from './page.mjs';
import { forgetAll } from './storage.mjs';

/** Put in front of the worker's program: gives tests its device, and lets them fill the GPU's memory. */
const HANDLES = `
  const open = GPUAdapter.prototype.requestDevice;
  GPUAdapter.prototype.requestDevice = async function (...given) { return (self.device = await open.apply(this, given)); };
  const pop = GPUDevice.prototype.popErrorScope;
  GPUDevice.prototype.popErrorScope = async function () { const found = await pop.call(this); return self.full ? new GPUOutOfMemoryError('injected') : found; };
`;

const answered = (page) => page.waitForFunction(() => /%/.test(document.querySelector('.lane.read .bars .figure').textContent) && document.querySelector('#read'), null, { timeout: PATIENCE });

export default function (world) {
  const { models, server } = world;
  const broken = (use, options) => async () => {
    server.before['/some/folder/worker_loader.js'] = HANDLES;
    try {
      return await withPage(world, (page) => use(page, () => page.workers()[0]), { draft: SHORT, quiet: false, ...options });
    } finally {
      delete server.before['/some/folder/worker_loader.js'];
    }
  };
  const notice = async (page, words) => {
    await page.waitForFunction((words) => [...document.querySelectorAll('.notice')].some((notice) => new RegExp(words, 'i').test(notice.textContent)), words, { timeout: PATIENCE });
  };
  const use = async (page) => {
    await page.click('text=Change model');
    await page.locator('#kept li', { hasText: TINY }).getByText('Use').click();
  };
  return {
    'a lost device: the model is loaded again and the run goes on': broken(async (page, worker) => {
      await loadFile(page, models);
      await worker().evaluate(() => self.device.destroy());
      await page.click('#read');
      await answered(page);
      const remark = await page.locator('#model-title ~ .panel .remark').innerText();
      check(/loaded again/.test(remark), remark);
      equal(await page.inputValue('#state'), SHORT.state, 'what was typed');
      return remark;
    }),

    'a worker that breaks, at rest and during a run': broken(async (page, worker) => {
      await loadFile(page, models);
      const crash = () => worker().evaluate(() => { setTimeout(() => { throw new Error('injected'); }); });
      await crash();
      await notice(page, 'the engine stopped');
      await page.click('button >> text=Load the model again');
      await page.waitForSelector('#loaded', { timeout: PATIENCE });
      await page.click('#run');
      await page.waitForFunction(() => /^[1-9]/.test(document.querySelectorAll('.lane.write .facts dd')[1].textContent), null, { timeout: PATIENCE });
      await crash();
      await page.waitForFunction(() => !document.querySelector('.verdict').classList.contains('empty'), null, { timeout: PATIENCE });
      const lines = (await page.locator('.timeline path').getAttribute('d')).match(/M/g).length;
      equal([lines, await page.locator('.lane.write .facts dd').nth(1).innerText()], [12, '12 tokens'], 'tokens of the answer that was begun anew');
      equal(await page.inputValue('#state'), SHORT.state, 'what was typed');
    }, { query: '?test&limit=12' }),

    'a GPU without room': broken(async (page, worker) => {
      await loadFile(page, models);
      await worker().evaluate(() => { self.full = true; });
      await use(page);
      await notice(page, 'not enough gpu memory');
      await worker().evaluate(() => { self.full = false; });
      await page.click('button >> text=Load the model again');
      await page.waitForSelector('#loaded', { timeout: PATIENCE });
    }),

    'a tab that is hidden during a run': () => withPage(world, async (page) => {
      await loadFile(page, models);
      await page.click('#run');
      await page.evaluate(() => {
        Object.defineProperty(document, 'hidden', { get: () => true, configurable: true });
        document.dispatchEvent(new Event('visibilitychange'));
      });
      await page.waitForSelector('.verdict .remark', { timeout: PATIENCE });
      check(/hidden during the run/.test(await page.locator('.verdict .remark').innerText()), 'the times are marked');
    }, { query: '?test&limit=4', draft: SHORT }),

    'storage that was cleared, and a file that was changed in it': () => withPage(world, async (page) => {
      await forgetAll(page);
      await loadFile(page, models);
      await page.evaluate(async (name) => {
        const folder = await (await navigator.storage.getDirectory()).getDirectoryHandle('models');
        const file = await (await folder.getFileHandle(name)).createWritable({ keepExistingData: true });
        await file.write({ type: 'write', position: 3_000_000, data: new Uint8Array([1, 2, 3]) });
        await file.close();
      }, TINY);
      await use(page);
      await notice(page, 'the stored model is damaged');
      await page.waitForFunction(() => !document.querySelector('#kept'));
      await loadFile(page, models);
      // The list on the page is older than what happens to the storage now.
      await page.click('text=Change model');
      await page.waitForSelector('#kept li');
      await page.waitForTimeout(500);
      await page.evaluate(async () => (await navigator.storage.getDirectory()).removeEntry('models', { recursive: true }));
      await page.locator('#kept li', { hasText: TINY }).getByText('Use').click();
      await notice(page, 'the stored model is gone');
      await page.waitForFunction(() => !document.querySelector('#kept'));
      await loadFile(page, models);
    }, { quiet: false }),

    'a second tab with the same file': () => withPage(world, async (page) => {
      await forgetAll(page);
      await loadFile(page, models);
      const other = await openPage(world.browser, world.home);
      await other.waitForSelector('#kept li');
      await Promise.all([use(page), other.click('#kept >> text=Use')]);
      await Promise.all([page, other].map((page) => page.waitForSelector('#loaded', { timeout: PATIENCE })));
      await other.close();
    }),

    'a browser that cannot start the page': async () => {
      const browser = await openBrowser();
      try {
        const page = await browser.newPage();
        await page.addInitScript(() => { delete window.WebAssembly; });
        await page.goto(world.home);
        await page.waitForSelector('.notice');
        const words = await page.locator('.notice').first().innerText();
        check(/could not start/.test(words) && /Chrome/.test(words), words);
      } finally {
        await browser.close();
      }
    },
  };
}
