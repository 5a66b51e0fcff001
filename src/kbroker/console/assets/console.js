// Keeps an open page up to date, and says so when it is not: the broker stopped, or the session is over.
"use strict";
(() => {
  const root = document.body.dataset.root;
  const viewer = Array.from(crypto.getRandomValues(new Uint8Array(8)), (b) => b.toString(16).padStart(2, "0")).join("");
  const banner = document.getElementById("connection");
  const pause = document.getElementById("pause");
  const live = document.querySelector("[data-live]");
  const PATIENCE_MS = 8000, RETRY_MS = 2000;
  let again = 2000, timer = 0, lostAt = null, isPaused = false, isAsking = false;

  const clock = (moment) => `${moment.toISOString().slice(11, 19)} UTC`;

  function say(text, isGood) {
    banner.textContent = text;
    banner.hidden = !text;
    banner.classList.toggle("good", Boolean(isGood));
  }

  // Asks the console; every page's requests go through here, so that each sees when the broker is away.
  async function ask(url) {
    let response;
    try {
      response = await fetch(url, {
        headers: {"KB-Part": "1", "KB-Viewer": viewer}, cache: "no-store", redirect: "error",
        signal: AbortSignal.timeout(PATIENCE_MS),
      });
    } catch {
      lostAt ??= new Date();
      say(`The broker does not respond since ${clock(lostAt)}. The shown values are older than that; this page continues when the broker responds.`);
      again = RETRY_MS;
      return null;
    }
    again = Number(response.headers.get("KB-Again-Ms")) || again;
    if (response.status === 401 || response.status === 403) {
      say("Your session is over. Load this page again to sign in.");
      return null;
    }
    if (!response.ok) {
      say((await response.text()).slice(0, 300));
      return null;
    }
    if (lostAt) {
      say(`The broker is back since ${clock(new Date())}.`, true);
      setTimeout(() => { if (!lostAt && banner.classList.contains("good")) say(""); }, 8000);
      lostAt = null;
    } else if (!banner.classList.contains("good")) {
      say("");
    }
    return response;
  }

  async function refresh() {
    const part = document.querySelector("[data-live]");
    const url = part ? part.dataset.live : `${root}/alive`;
    const response = await ask(url);
    if (!response || !part || isPaused) return;
    const text = await response.text();
    if (document.querySelector("[data-live]")?.dataset.live === url) { // a filter may have changed meanwhile
      await htmx.swap({text, target: "#live", swap: "innerMorph"});
    }
  }

  let look = refresh;

  async function poll() {
    clearTimeout(timer);
    if (isAsking) return;
    if (!document.hidden && !isPaused) {
      isAsking = true;
      try { await look(); } finally { isAsking = false; }
    }
    timer = setTimeout(poll, again);
  }

  document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });
  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.setAttribute("aria-pressed", String(isPaused));
    if (!isPaused) poll();
  });
  document.addEventListener("htmx:error", () => poll());
  document.addEventListener("htmx:response:error", (event) => {
    say(`The console could not show that (status ${event.detail?.ctx?.response?.status ?? "unknown"}).`);
  });
  // Times of a form are UTC, as all times of these pages; a page that is opened again shows what was asked for.
  window.kbroker = {
    ask,
    show(update) { look = update; pause.hidden = false; poll(); },
  };
  // A chosen file fills a field of its form; nothing of it is sent before the form is.
  document.addEventListener("change", async (event) => {
    const field = event.target.dataset?.into && document.getElementById(event.target.dataset.into);
    if (field && event.target.files[0]) field.value = await event.target.files[0].text();
  });
  document.querySelector("header [aria-current]")?.scrollIntoView({inline: "center", block: "nearest", behavior: "instant"});
  if (live) pause.hidden = false;
  timer = setTimeout(poll, again);
})();
