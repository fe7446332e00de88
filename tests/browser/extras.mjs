// What goes in and out of the page, reading while typing, the self-test, working offline, and accessibility.
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { accessible, check, equal, openBrowser, openPage } from './harness.mjs';
import { PATIENCE, SHORT, loadFile, withPage } from './page.mjs';

export default function (world) {
  const { models, model, server } = world;
  return {
    'rows go out and come back in': () => withPage(world, async (page) => {
      await page.click('.chip >> text=Phishing triage');
      await page.click('.add');
      await page.locator('.question').nth(1).locator('textarea').first().fill('Urgent?');
      for (const [i, words] of ['yes', 'no'].entries()) await page.locator('.question').nth(1).locator('.option-text').nth(i).fill(words);
      const [download] = await Promise.all([page.waitForEvent('download'), page.click('#export')]);
      const file = path.join(fs.mkdtempSync(path.join(os.tmpdir(), 'semif-rows-')), 'rows.jsonl');
      await download.saveAs(file);
      const rows = fs.readFileSync(file, 'utf8').trim().split('\n').map((line) => JSON.parse(line));
      equal(rows.map((row) => row.options.length), [3, 2], 'options');
      equal(rows[1].options.map((option) => option.id), ['A', 'B'], 'names that were left empty');
      equal(rows[0].state.attachments, [], 'the state is embedded as JSON');
      await page.click('.chip >> text=Support routing');
      equal(await page.locator('.question').count(), 1, 'questions of an example');
      await page.setInputFiles('#import', file);
      await page.waitForFunction(() => document.querySelectorAll('.question').length === 2);
      equal(await page.locator('.question').nth(1).locator('textarea').first().inputValue(), 'Urgent?', 'the second question');
      fs.writeFileSync(file, '{"id": "x", "question": "", "state": "s", "options": []}\n');
      await page.setInputFiles('#import', file);
      await page.waitForSelector('.exchange p');
      check(/question/.test(await page.locator('.exchange p').innerText()), 'a bad row is named');
      equal(await page.locator('.question').count(), 2, 'nothing was replaced');
    }),

    'a link carries the decision in its fragment': () => withPage(world, async (page) => {
      await page.context().grantPermissions(['clipboard-read', 'clipboard-write']);
      await page.fill('#state', 'Ünïcode & “quotes” #hash');
      await page.click('text=Copy a link');
      await page.waitForSelector('text=Copied');
      const link = await page.evaluate(() => navigator.clipboard.readText());
      check(link.startsWith(`${world.home}#`), `the link is ${link}`);
      await page.evaluate(() => localStorage.clear());
      await page.evaluate((draft) => localStorage.setItem('semif.draft', draft), JSON.stringify(SHORT));
      const other = await openPage(world.browser, link);
      equal(await other.inputValue('#state'), 'Ünïcode & “quotes” #hash', 'the state');
      equal(await other.evaluate(() => location.href), world.home, 'the address afterwards');
      await other.fill('#state', 'Changed.');
      await other.reload();
      equal(await other.inputValue('#state'), 'Changed.', 'the state after a reload');
      await other.click('#bring-back');
      equal(await other.inputValue('#state'), SHORT.state, 'what had been typed before the link');
      await other.evaluate((link) => { location.hash = new URL(link).hash; }, link);
      await other.waitForFunction(() => document.querySelector('#state').value.startsWith('Ünïcode'));
      await other.close();
      check(world.server.log.every((entry) => !entry.url.includes('quotes')), 'the decision was sent to the server');
    }),

    'reading while typing': () => withPage(world, async (page) => {
      await loadFile(page, models);
      await page.check('#live');
      const row = () => page.locator('.lane.read .stream').innerText();
      await page.waitForFunction(() => document.querySelector('.lane.read .stream').textContent.startsWith('{') && document.querySelector('#read'), null, { timeout: PATIENCE });
      const first = JSON.parse(await row()).prompt_sha256;
      await page.fill('#state', 'Another note.');
      await page.waitForFunction((first) => {
        const text = document.querySelector('.lane.read .stream').textContent;
        return text.startsWith('{') && JSON.parse(text).prompt_sha256 !== first && document.querySelector('#read');
      }, first, { timeout: PATIENCE });
      equal(await page.locator('.lanes.stale').count(), 0, 'answers to an older text');
      // The state stays as it is: only what follows it is read.
      const prompt = () => page.locator('.lane.read .facts dd').first().innerText();
      await page.fill('.question textarea', 'Throw it away?');
      await page.waitForFunction(() => /new of/.test(document.querySelector('.lane.read .facts dd').textContent) && document.querySelector('#read'), null, { timeout: PATIENCE });
      const [, fresh, all] = /^(\d+) new of (\d+)$/.exec(await prompt()) ?? [];
      check(Number(fresh) > 0 && Number(fresh) < Number(all) / 2, `tokens read again: ${await prompt()}`);
      return await prompt();
    }, { draft: SHORT }),

    'the bench measures the loaded model, and stops': () => withPage(world, async (page) => {
      equal(await page.locator('#start-bench').isDisabled(), true, 'measuring without a model');
      await loadFile(page, models);
      await page.click('#start-bench');
      await page.waitForFunction(() => document.querySelector('#bench-progress').textContent === 'Everything is measured.', null, { timeout: PATIENCE });
      const report = JSON.parse(await page.locator('#bench-json').textContent());
      equal(report.results.map((one) => Object.keys(one).find((key) => key !== 'longest_submit')), ['load', 'prompt', 'prompt', 'generate', 'shared'], 'what was measured');
      const [load, short, long, written, shared] = report.results;
      check(load.load.all > 0 && load.load.weights > 0, `loading took ${load.load.all} s`);
      equal([short.prompt.tokens, long.prompt.tokens, written.generate.tokens], [16, 64, 4], 'sizes');
      check(long.prompt.seconds > 0 && Math.abs(long.prompt.tokens_per_second * long.prompt.seconds - 64) < 1e-6, 'the rate is tokens over seconds');
      equal(shared.shared.paths.map((path) => [path.path, path.decisions, path.same_bits]), [['fresh', 3, true], ['serial', 3, true], ['shared', 3, true]], 'the paths');
      check(report.longest_submit_seconds > 0, 'no submit was timed');
      check(report.longest_task_seconds !== null, 'Chromium tells of long tasks');
      check(report.model.name.length > 0 && report.software === true && report.complete === true, 'what it was measured on');
      const rows = await page.locator('#bench-table tbody th').allInnerTexts();
      equal(rows.length, 11, 'lines of the table');
      check(/^The longest submit took \d/.test(await page.locator('#bench-drawn').innerText()), 'the longest submit in words');
      await page.uncheck('#bench-reload');
      await page.click('#start-bench');
      await page.waitForFunction(() => document.querySelectorAll('#bench-table tbody tr').length === 6, null, { timeout: PATIENCE });
      await page.click('#stop-bench');
      await page.waitForFunction(() => /^Stopped\./.test(document.querySelector('#bench-progress').textContent), null, { timeout: PATIENCE });
      check(await page.locator('#bench-table tbody tr').count() < 11, 'what was measured after the stop');
      return `longest submit ${(report.longest_submit_seconds * 1e3).toFixed(0)} ms, longest task ${(report.longest_task_seconds * 1e3).toFixed(0)} ms`;
    }, { query: '?bench=quick' }),

    'the self-test stops, and runs every kernel': () => withPage(world, async (page) => {
      await page.click('#selftest >> text=Stop');
      await page.waitForFunction(() => /^Stopped/.test(document.querySelector('#selftest-verdict').textContent), null, { timeout: PATIENCE });
      await page.click('#selftest');
      await page.waitForFunction(() => /kernels compute/.test(document.querySelector('#selftest-verdict')?.textContent), null, { timeout: 2 * PATIENCE });
      const verdict = await page.locator('#selftest-verdict').innerText();
      check(/^All \d+ kernels/.test(verdict), verdict);
      return verdict;
    }, { query: '?selftest' }),

    'the page itself works offline': async () => {
      const browser = await openBrowser();
      try {
        const page = await openPage(browser, world.home);
        // After the first visit everything is there, whatever this visit has asked for.
        await page.evaluate(() => navigator.serviceWorker.ready);
        await browser.setOffline(true);
        await page.reload();
        await page.waitForSelector('.device .good, .device .slow', { timeout: PATIENCE });
        await loadFile(page, models);
        // An update is kept beside the old version, and takes its place as a whole at the next load of the only tab.
        await browser.setOffline(false);
        const worker = fs.readFileSync(path.join(world.dist, 'sw.js'), 'utf8');
        check(/^const VERSION = '[0-9a-f]{16}';$/m.test(worker), 'the service worker has a version');
        server.before['/some/folder/style.css'] = '/* another version */';
        server.instead['/some/folder/sw.js'] = worker.replace(/^const VERSION = .*/m, "const VERSION = 'another';");
        const style = () => page.evaluate(async () => (await (await fetch('style.css')).text()).startsWith('/* another'));
        await page.evaluate(async () => {
          const registration = await navigator.serviceWorker.getRegistration();
          await registration.update();
          while (!registration.waiting) await new Promise((done) => { setTimeout(done, 50); });
        });
        equal(await style(), false, 'a file of the new version on the old page');
        await page.reload();
        await page.waitForSelector('.device .good, .device .slow', { timeout: PATIENCE });
        equal(await style(), true, 'a file of the new version after the reload');
        equal(await page.evaluate(() => caches.keys()), ['semif-page-another'], 'sets that are kept');
      } finally {
        delete server.before['/some/folder/style.css'];
        delete server.instead['/some/folder/sw.js'];
        await browser.close();
      }
    },

    'no serious accessibility fault': () => withPage(world, async (page) => {
      await page.waitForSelector('.device .good, .device .slow');
      await accessible(page, 'before a model is chosen');
      await loadFile(page, models);
      await page.click('#read');
      await page.waitForFunction(() => /%/.test(document.querySelector('.lane.read .bars .figure').textContent) && document.querySelector('#read'), null, { timeout: PATIENCE });
      await page.fill('#state', 'Something else.');
      await page.waitForSelector('.lanes.stale');
      await page.evaluate(() => document.querySelectorAll('details').forEach((details) => { details.open = true; }));
      await page.click('text=Change model');
      await page.fill('#url', model('absent.gguf'));
      await page.click('.address button');
      await page.waitForSelector('.notice');
      await accessible(page, 'with an older answer and a notice');
    }, { draft: SHORT, quiet: false }),
  };
}
