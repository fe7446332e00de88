// Evaluating on this device: labelled rows in, results, charts and a receipt out, across a reload.
import { createHash } from 'node:crypto';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { accessible, check, equal } from './harness.mjs';
import { PATIENCE, loadFile, withPage } from './page.mjs';
import { forgetAll } from './storage.mjs';

const OPTIONS = [{ id: 'keep', description: 'yes' }, { id: 'drop', description: 'no' }];
const row = (id, label) => ({ id, family: id < 'c' ? 'one' : 'two', state: `Note ${id}.`, question: 'Keep it?', options: OPTIONS, label });

const cell = (page, name, line = 0) => page.locator('.scores tbody tr').nth(line).locator(`td[data-label="${name}"]`).innerText();

async function saved(page, button) {
  const [download] = await Promise.all([page.waitForEvent('download'), page.click(button)]);
  const file = path.join(fs.mkdtempSync(path.join(os.tmpdir(), 'semif-evaluation-')), download.suggestedFilename());
  await download.saveAs(file);
  return fs.readFileSync(file, 'utf8');
}

export default function (world) {
  const { models } = world;
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'semif-rows-'));
  process.on('exit', () => fs.rmSync(folder, { recursive: true, force: true }));
  const write = (name, rows) => {
    const place = path.join(folder, name);
    fs.writeFileSync(place, rows.map((row) => JSON.stringify(row)).join('\n'));
    return place;
  };
  const clear = async (page) => {
    await page.waitForSelector('.device .good, .device .slow');
    await page.waitForTimeout(300);
    if (await page.locator('#clear-evaluation').count()) await page.click('#clear-evaluation');
  };
  return {
    'evaluate in every order, across a reload': () => withPage(world, async (page) => {
      await forgetAll(page);
      await clear(page);
      await loadFile(page, models);
      equal(await page.locator('#start-evaluation').isDisabled(), true, 'evaluating without rows');
      const file = write('labelled.jsonl', [row('a', 'keep'), row('b', 'drop'), { ...row('x', 'keep'), label: 'maybe' }, row('c', 'keep'), row('d', 'drop')]);
      await page.setInputFiles('#rows', file);
      check(/labelled\.jsonl: 4 rows, 2 families/.test(await page.locator('#set').innerText()), await page.locator('#set').innerText());
      check(/1 row left out/.test(await page.locator('.bad-rows summary').innerText()), 'the bad row is counted');
      await page.check('#orders');
      await page.click('#start-evaluation');
      await page.waitForFunction(() => /: [1-3] of 4 rows/.test(document.querySelector('#evaluation-progress').textContent), null, { timeout: PATIENCE });
      // Long enough for what was read to be written down.
      await page.waitForFunction(async () => {
        try {
          const folder = await (await navigator.storage.getDirectory()).getDirectoryHandle('records');
          return (await (await (await folder.getFileHandle('evaluation.jsonl')).getFile()).text()).includes('"row":0');
        } catch { return false; }
      }, null, { timeout: PATIENCE, polling: 200 });
      await page.reload();
      await page.waitForSelector('#found', { timeout: PATIENCE });
      check(/of 4 rows are read/.test(await page.locator('#evaluate .remark').innerText()), 'the page says that it can go on');
      await page.waitForFunction(() => document.querySelector('#start-evaluation')?.textContent === 'Go on');
      await page.click('#start-evaluation');
      await page.waitForSelector('#start-evaluation', { timeout: PATIENCE });
      equal(await cell(page, 'Rows'), '4', 'rows');

      const text = await saved(page, '#save-results');
      const results = text.trim().split('\n').map((line) => JSON.parse(line));
      equal(results.map((result) => result.id), ['a', 'b', 'c', 'd'], 'result rows');
      check(results.every((result) => result.orderings.length === 2 && Math.abs(result.combined.probabilities.reduce((a, b) => a + b) - 1) < 1e-9), 'every order is there');
      // The table against the same numbers from the saved rows.
      const labels = ['keep', 'drop', 'keep', 'drop'];
      const p = results.map((result, i) => result.probabilities[result.option_ids.indexOf(labels[i])]);
      const accuracy = p.filter((p) => p > 0.5).length / 4;
      equal(await cell(page, 'Accuracy'), `${(accuracy * 100).toFixed(1)} %`, 'accuracy');
      equal(await cell(page, 'NLL'), (p.reduce((sum, p) => sum - Math.log(p), 0) / 4).toFixed(3), 'NLL');
      const flips = results.filter((result) => {
        const best = (ids, p) => ids[p.indexOf(Math.max(...p))];
        return result.orderings.some((order) => best(order.order, order.probabilities) !== best(result.option_ids, result.probabilities));
      }).length;
      equal(await cell(page, 'Flips'), `${flips} of 4`, 'flips');
      const combined = results.filter((result, i) => result.combined.top === labels[i]).length / 4;
      equal(await cell(page, 'Accuracy', 1), `${(combined * 100).toFixed(1)} %`, 'accuracy over all orders');

      const csv = await saved(page, '#save-csv');
      equal(csv.trim().split('\r\n').length, 5, 'lines of the table');
      const receipt = JSON.parse(await saved(page, '#save-receipt'));
      const hash = (bytes) => createHash('sha256').update(bytes).digest('hex');
      equal(receipt.rows.sha256, hash(fs.readFileSync(file)), 'hash of the rows');
      equal(receipt.results_sha256, hash(text), 'hash of the results');
      equal(receipt.models[0].file.sha256, hash(fs.readFileSync(path.join(models, 'qwen3-tiny-Q8_0.gguf'))), 'hash of the model');
      check(receipt.adapter.name && receipt.browser && receipt.models[0].tier === 'exact', 'adapter, browser and tier');
      equal([receipt.rows.labelled, receipt.rows.refused, receipt.models[0].prompts], [4, 1, 8], 'counts');
      check(await page.locator('.charts svg').count() === 2 && await page.locator('.charts .mark').count() > 2, 'both charts are drawn');
      if (process.env.SEMIF_SHOTS) await page.locator('#evaluate').screenshot({ path: path.join(process.env.SEMIF_SHOTS, 'evaluate-1280.png') });
      await accessible(page, 'with an evaluation');
      // Results do not go unasked.
      await page.uncheck('#orders');
      await page.click('#start-evaluation');
      check(/4 rows read/.test(await page.locator('#at-stake').innerText()), await page.locator('#at-stake').innerText());
      await page.click('text=Keep them');
      equal([await page.locator('#at-stake').count(), await cell(page, 'Rows')], [0, '4'], 'the results');
      await page.click('#clear-evaluation');
      await page.waitForSelector('#found', { state: 'detached' });
      return `accuracy ${accuracy}, ${flips} flips`;
    }),

    'evaluate two models, stop, and go on': () => withPage(world, async (page) => {
      await forgetAll(page);
      await clear(page);
      await loadFile(page, models);
      await page.click('text=Change model');
      await loadFile(page, models, 'qwen2-tiny-Q8_0.gguf', /qwen2/i);
      await page.setInputFiles('#rows', write('two.jsonl', [row('a', 'keep'), row('b', 'drop')]));
      const boxes = page.locator('#rungs input');
      for (const i of [0, 1]) await boxes.nth(i).check();
      await page.click('#start-evaluation');
      await page.waitForFunction(() => /: 0 of 2 rows/.test(document.querySelector('#evaluation-progress').textContent), null, { timeout: PATIENCE });
      await page.click('#stop-evaluation');
      await page.waitForSelector('#start-evaluation', { timeout: PATIENCE });
      check(/Stopped/.test(await page.locator('#evaluate .remark').innerText()), 'the page says that it was stopped');
      await page.click('#start-evaluation');
      await page.waitForSelector('#start-evaluation', { timeout: PATIENCE });
      equal([await cell(page, 'Rows', 0), await cell(page, 'Rows', 1)], ['2', '2'], 'rows');
      await page.click('#clear-evaluation');
    }),
  };
}
