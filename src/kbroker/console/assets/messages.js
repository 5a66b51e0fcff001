// Continues a search step by step until it has found enough, and follows new records, within limits.
"use strict";
(() => {
  const list = document.getElementById("found");
  const line = document.getElementById("looked");
  if (!line.dataset.more) return;
  const isLive = line.dataset.follow === "1", isForward = line.dataset.forward === "1";
  const COUNT = Number(list.dataset.count), KEPT = 200, LIVE_MS = 15 * 60 * 1000, LOOKED = 5_000_000, TURN_MS = 1500;
  const began = performance.now();
  let more = line.dataset.more, looked = Number(line.dataset.looked), found = list.querySelectorAll("article").length;
  let isStopped = false;

  const isPaused = () => document.getElementById("pause").getAttribute("aria-pressed") === "true";

  function tell(where, end) {
    line.replaceChildren(`Examined ${looked.toLocaleString("en")} records, ${where}. Matches: ${found.toLocaleString("en")}. ${end}`);
    if (more) {
      const link = document.createElement("a");
      link.href = more;
      link.textContent = isLive ? "Go on from here" : "Look further";
      line.append(link);
    }
  }

  // One step; true if another one should follow at once.
  async function step() {
    const response = await window.kbroker.ask(more);
    if (!response) return false;
    const part = new DOMParser().parseFromString(await response.text(), "text/html");
    const next = part.getElementById("looked");
    if (!next) return false;
    const records = [...part.querySelectorAll("article, [role=alert]")];
    const isAtEnd = window.innerHeight + window.scrollY >= document.body.scrollHeight - 40;
    if (isLive || isForward) list.append(...records);
    else line.after(...records);
    const shown = list.querySelectorAll("article");
    for (let surplus = shown.length - KEPT; surplus > 0; surplus--) shown[isLive || isForward ? shown.length - KEPT - surplus : KEPT + surplus - 1].remove();
    found += records.filter((one) => one.matches("article")).length;
    looked += Number(next.dataset.looked);
    more = next.dataset.more;
    if (isLive && isAtEnd && records.length) window.scrollTo(0, document.body.scrollHeight);
    const isLate = isLive && (performance.now() - began > LIVE_MS || looked > LOOKED);
    isStopped = !more || isLate || (!isLive && found >= COUNT);
    tell(next.dataset.where, isLate ? "Stopped: this page has followed for long enough. " : isLive ? "New records appear below. " : "");
    return !isStopped && (isLive ? Number(next.dataset.looked) > 0 : true);
  }

  window.kbroker.show(async () => {
    if (isStopped) {
      await window.kbroker.ask(`${document.body.dataset.root}/alive`);
      return;
    }
    const turn = performance.now();
    while (await step() && !isPaused() && performance.now() - turn < TURN_MS);
  });
})();
