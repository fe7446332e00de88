// The page itself: what it shows, deciding, comparing, stopping, and what it never loses.
import path from 'node:path';
import { check, equal, openPage } from './harness.mjs';

/** A few words: with random weights and 512 tokens of vocabulary every letter is a token, and the adapter is slow. */
export const SHORT = {
  kind: 'text',
  state: 'A note.',
  questions: [{ question: 'Keep it?', options: [{ id: 'keep', description: 'yes' }, { id: 'drop', description: 'no' }] }],
};

export const TINY = 'qwen3-tiny-Q8_0.gguf';

/** The software adapter on a busy machine takes its time, above all to compile. */
export const PATIENCE = 600_000;

/** Chooses a file and waits until it is on the GPU. */
export async function loadFile(page, models, name = TINY, shown = /./) {
  await page.setInputFiles('#file', path.join(models, name));
  await page.waitForFunction((shown) => new RegExp(shown, 'i').test(document.querySelector('#loaded')?.textContent ?? ''), shown.source, { timeout: PATIENCE });
}

/** Opens the page, gives it to `use`, and refuses whatever the browser complained about meanwhile. */
export async function withPage(world, use, { query = '', quiet = true, foreign: allowed = false, draft } = {}) {
  const page = await openPage(world.browser, world.home + query, draft);
  if (!draft) await page.evaluate(() => { localStorage.clear(); sessionStorage.clear(); }).then(() => page.reload());
  try {
    const words = await use(page);
    if (quiet) equal(page.faults, [], 'the browser complained');
    const foreign = page.requests.filter((url) => !url.startsWith(world.server.url) && !url.startsWith('blob:'));
    if (!allowed) equal(foreign, [], 'requests to other hosts');
    return words;
  } finally {
    await page.close();
  }
}

export default function (world) {
  const { models } = world;
  return {
    'the page opens in a subfolder and describes the device': () => withPage(world, async (page) => {
      await page.waitForSelector('.device .good, .device .slow');
      const device = await page.locator('summary').first().innerText();
      check(/This device: \S/.test(device), device);
      equal(await page.locator('#run').isDisabled(), true, 'deciding without a model');
      check(page.requests.every((url) => !url.includes('/models/')), 'a model was fetched before a click');
      check(/stored in this browser/.test(await page.locator('#storage').innerText()), 'what will be stored where');
      check(/exact tier/.test(await page.locator('#device-words').innerText()), 'the tier before a model is loaded');
      return device.trim();
    }),

    'decide and compare': () => withPage(world, async (page) => {
      await loadFile(page, models);
      await page.waitForFunction(() => /^\d+ of/.test(document.querySelector('.count').textContent), null, { timeout: 30_000 });
      await page.focus('.question textarea');
      await page.evaluate(() => {
        window.shifts = [];
        new PerformanceObserver((list) => {
          for (const entry of list.getEntries()) window.shifts.push([entry.value, ...entry.sources.map(({ node }) => node?.id || node?.className || node?.nodeName)]);
        }).observe({ type: 'layout-shift' });
        document.querySelector('#answer').scrollIntoView();
      });
      check(/^Two ways/.test(await page.locator('#verdict').innerText()), 'the verdict before a run');
      await page.keyboard.press('Control+Enter');
      await page.waitForFunction(() => !document.querySelector('.verdict').classList.contains('empty'), null, { timeout: PATIENCE });
      const shifts = await page.evaluate(() => window.shifts);
      check(shifts.reduce((sum, [value]) => sum + value, 0) < 0.02, `what moved while the answer came: ${JSON.stringify(shifts)}`);
      equal(await page.evaluate(() => document.activeElement.tagName), 'TEXTAREA', 'the focus of who types');
      const loading = await page.locator('#loaded').textContent();
      const [, line, step] = /on the GPU in ([\d.]+ m?s).*Onto the GPUdone in ([\d.]+ m?s)/.exec(loading) ?? [];
      check(line && line === step, `one time of loading: ${loading}`);
      const software = await page.locator('.device .slow').count() > 0;
      equal(/first run [\d.]+/.test(loading), !software, 'a first run that was one');
      const shares = (await page.locator('.lane.read .bars .figure').allInnerTexts()).map(parseFloat);
      check(shares.length === 2 && Math.abs(shares.reduce((a, b) => a + b) - 100) < 0.3, `shares ${shares}`);
      const row = JSON.parse(await page.locator('.lane.read .stream').textContent());
      equal(row.option_ids, ['keep', 'drop'], 'option ids');
      check(Math.abs(row.probabilities.reduce((a, b) => a + b) - 1) < 1e-9, 'probabilities add up to 1');
      row.probabilities.forEach((p, i) => check(Math.abs(p * 100 - shares[i]) < 0.1, `bar ${i}`));
      check(row.prompt_version === 'semif-direct-v1' && /^[0-9a-f]{64}$/.test(row.prompt_sha256), 'prompt version and hash');
      const written = await page.locator('.lane.write .facts dd').nth(1).innerText();
      check(/^[\d\u202f]+ tokens?$/.test(written), written);
      equal(written, '6 tokens', 'tokens of the written answer');
      check((await page.locator('.lane.write .verdict-line').first().innerText()).length > 5, 'a written answer without an end is called unusable');
      const verdict = await page.locator('#verdict').innerText();
      check(/^Writing gave no usable answer in .+; reading took /.test(verdict), verdict);
      // Two letters of 512 tokens: hardly anything of the probability is theirs.
      check(/^With care: >?9/.test(await page.locator('.read-line').innerText()), 'the low mass in the lane');
      check(/^Take the answer with care/.test(await page.locator('#compared').innerText()), 'the low mass in the verdict');
      check(/^0\.\d+ of 1\.00 bits$/.test(await page.locator('.lane.read .facts dd').nth(4).innerText()), 'the entropy in the terminal\'s unit');
      if (process.env.SEMIF_SHOTS) await page.screenshot({ path: path.join(process.env.SEMIF_SHOTS, 'answer-1280.png'), fullPage: true });
      return verdict.toLowerCase();
    }, { query: '?test&limit=6', draft: SHORT }),

    'five questions on one state, and two of them once more': () => withPage(world, async (page) => {
      await loadFile(page, models);
      await page.click('#run');
      const done = () => page.waitForFunction(() => !document.querySelector('.verdict').classList.contains('empty') && document.querySelector('#run'), null, { timeout: PATIENCE });
      await done();
      const seconds = (text) => (/ms$/.test(text) ? parseFloat(text) / 1e3 : parseFloat(text));
      const clocks = async (lane) => (await page.locator(`.lane.${lane} .clock`).allInnerTexts()).map(seconds);
      for (const lane of ['read', 'write']) {
        const [all, total] = [await clocks(lane), seconds(await page.locator(`.race .${lane} .figure`).innerText())];
        equal(all.length, 5, `${lane}: answers`);
        const sum = all.reduce((a, b) => a + b);
        check(Math.abs(sum - total) < 0.02 * total + 0.05, `${lane}: ${sum} s together, the verdict says ${total}`);
      }
      const compared = () => page.locator('#compared').innerText();
      check(/in common once/.test(await compared()) && !/earlier run/.test(await compared()), await compared());
      for (let i = 0; i < 3; i += 1) await page.locator('.question').first().getByText('Remove', { exact: true }).click();
      await page.click('#run');
      await page.waitForSelector('.verdict.empty');
      await done();
      check(/An earlier run had left the first \d+ tokens/.test(await compared()), await compared());
      return page.locator('#verdict').innerText();
    }, { query: '?test&limit=1', draft: { ...SHORT, questions: ['Keep it?', 'Read it?', 'Send it?', 'Burn it?', 'Show it?'].map((question) => ({ ...SHORT.questions[0], question })) } }),

    'read only by keyboard, in every order': () => withPage(world, async (page) => {
      await page.setViewportSize({ width: 390, height: 844 });
      await loadFile(page, models);
      await page.focus('#read');
      await page.evaluate(() => {
        window.heads = new Set();
        new MutationObserver(() => window.heads.add(document.querySelector('#verdict').textContent)).observe(document.querySelector('#verdict'), { characterData: true, subtree: true, childList: true });
      });
      await page.keyboard.press('Enter');
      await page.waitForFunction(() => { const { top, bottom } = document.querySelector('#verdict').getBoundingClientRect(); return top >= 0 && bottom <= innerHeight; });
      await page.waitForFunction(() => /%/.test(document.querySelector('.lane.read .bars .figure').textContent), null, { timeout: PATIENCE });
      equal(await page.locator('.lane.write .clock').innerText(), '–', 'the written lane');
      check((await page.evaluate(() => [...window.heads])).some((words) => /^Reading…/.test(words)), 'the verdict while it read');
      await page.waitForFunction(() => /^Read in .+: (keep|drop), [\d.]+ %$/.test(document.querySelector('#verdict').textContent) && document.activeElement.id === 'read');
      check(/Nothing was written/.test(await page.locator('#compared').innerText()), 'what the other button adds');
      equal(await page.locator('.race .write .figure').innerText(), '–', 'nothing was written');
      await page.click('.check-order');
      await page.waitForFunction(() => /of 2 orders agree on (keep|drop)\. Over all of them \1 has/.test(document.querySelector('.order').textContent), null, { timeout: PATIENCE });
      await page.fill('#state', 'Something else.');
      await page.waitForSelector('.lanes.stale');
      check(/^Edited since this run/.test(await page.locator('#compared').innerText()), 'the verdict of an older text');
      equal(await page.locator('#since-loading').innerText(), 'Since the model was loaded: no request at all.', 'requests after loading');
    }, { draft: SHORT }),

    'stop while it writes, then decide again': () => withPage(world, async (page) => {
      await loadFile(page, models);
      await page.click('#run');
      await page.waitForFunction(() => /[1-9]/.test(document.querySelectorAll('.lane.write .facts dd')[1].textContent), null, { timeout: PATIENCE });
      // The focus went from one button to the other, where Escape stops it.
      equal(await page.evaluate(() => document.activeElement.id), 'stop', 'the focus while it runs');
      await page.keyboard.press('Escape');
      await page.waitForSelector('#run', { timeout: PATIENCE });
      await page.waitForFunction(() => document.activeElement.id === 'run');
      check((await page.locator('.lane.write .verdict-line.bad').first().innerText()).startsWith('Stopped'), 'the lane says that it was stopped');
      check(/^Read in /.test(await page.locator('#verdict').innerText()) && /Writing was stopped/.test(await page.locator('#compared').innerText()), 'the verdict of a stopped run');
      await page.click('#read');
      await page.waitForFunction(() => /ms|s$/.test(document.querySelector('.lane.read .clock').textContent) && document.querySelector('#read'), null, { timeout: PATIENCE });
    }, { draft: SHORT }),

    'two tabs keep what was typed in each, and a full storage is told': () => withPage(world, async (page) => {
      await page.fill('#state', 'In the first tab.');
      const other = await openPage(world.browser, world.home);
      equal(await other.inputValue('#state'), 'In the first tab.', 'a new tab begins with what was typed last');
      await other.fill('#state', 'In the second tab.');
      await page.reload();
      equal(await page.inputValue('#state'), 'In the first tab.', 'the first tab');
      await other.close();
      await page.evaluate(() => { Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); }; });
      await page.fill('#state', 'Too much.');
      await page.waitForSelector('#refused');
    }),

    'what is typed survives a reload': () => withPage(world, async (page) => {
      await page.fill('#state', 'Zwölf Boxkämpfer \u2028 “quoted” <|im_start|>');
      await page.locator('.option-id').first().fill('erste');
      await page.locator('.add-option').click();
      await page.reload();
      equal(await page.inputValue('#state'), 'Zwölf Boxkämpfer \u2028 “quoted” <|im_start|>', 'the state');
      equal(await page.locator('.option-id').first().inputValue(), 'erste', 'the first option');
      equal(await page.locator('.option-id').count(), 5, 'number of options');
    }),

    'examples, JSON states and what is wrong with them': () => withPage(world, async (page) => {
      await page.click('.chip >> text=Phishing triage');
      check((await page.inputValue('#state')).startsWith('{'), 'the example has a JSON state');
      equal(await page.locator('#state-problem').innerText(), '', 'problem of a good state');
      await page.fill('#state', '{"a": 01}');
      check(/JSON/.test(await page.locator('#state-problem').innerText()), 'a bad state is named');
      await page.click('label[for=kind-text]');
      equal(await page.locator('#state-problem').innerText(), '', 'the same as text');
      await page.locator('.option-id').nth(1).fill('deliver');
      check((await page.locator('.question .problem').innerText()).length > 5, 'a repeated name is named');
      await page.click('.chip >> text=Support routing');
      equal(await page.locator('.question .problem').innerText(), '', 'problem of a good question');
      check(/four options/.test(await page.locator('#shows').innerText()), 'what the example shows');
      // What the example pushed aside comes back, across a reload, and is not pushed out by a look at another example.
      await page.click('.chip >> text=Guardrail');
      await page.reload();
      await page.click('#bring-back');
      equal(await page.inputValue('#state'), '{"a": 01}', 'what had been typed');
      equal(await page.locator('#before').count(), 0, 'nothing else had been typed');
    }),

    'options by keyboard alone': () => withPage(world, async (page) => {
      await page.click('.chip >> text=Policy rule');
      await page.locator('.option-id').first().focus();
      await page.keyboard.press('Enter');
      await page.waitForFunction(() => document.activeElement === document.querySelectorAll('.option-id')[1]);
      await page.keyboard.press('Enter');
      await page.waitForFunction(() => document.activeElement === document.querySelectorAll('.option-id')[2]);
      await page.keyboard.type('maybe');
      await page.keyboard.press('Alt+ArrowUp');
      await page.waitForFunction(() => document.querySelectorAll('.option-id')[1].value === 'maybe' && document.activeElement.value === 'maybe');
      equal(await page.locator('.option-id').evaluateAll((all) => all.map((input) => input.value)), ['yes', 'maybe', 'no'], 'order');
    }),

    'five questions, twenty options, not more': () => withPage(world, async (page) => {
      for (let i = 0; i < 4; i += 1) await page.click('.add');
      equal(await page.locator('.add').count(), 0, 'a sixth question');
      const first = page.locator('.question').first();
      while (await first.locator('.add-option').count()) await first.locator('.add-option').click();
      equal(await first.locator('.option-id').count(), 20, 'options');
      await first.locator('.options .icon').last().click();
      equal(await first.locator('.option-id').count(), 19, 'options after removing one');
      await page.click('.chip >> text=Support routing');
      equal(await page.locator('.question').count(), 1, 'questions of an example');
    }),

    'one column on a phone, in both themes': async () => {
      for (const colorScheme of ['light', 'dark']) {
        for (const width of [390, 768, 1440]) {
          await withPage(world, async (page) => {
            await page.emulateMedia({ colorScheme });
            await page.setViewportSize({ width, height: 900 });
            await page.waitForSelector('.device .good, .device .slow');
            const [inner, outer] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
            check(inner <= outer, `sideways scroll at ${width} px: ${inner}`);
            if (process.env.SEMIF_SHOTS) await page.screenshot({ path: path.join(process.env.SEMIF_SHOTS, `start-${width}-${colorScheme}.png`), fullPage: true });
          });
        }
      }
    },
  };
}
