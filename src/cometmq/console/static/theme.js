// Runs before the page is drawn: the time zone and the colours that the reader wants, for the server's next page.
"use strict";
(() => {
  const year = "; max-age=31536000; path=/; samesite=strict";
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
  if (!document.cookie.split("; ").includes("zone=" + zone)) document.cookie = "zone=" + zone + year;
  window.setTheme = (theme) => {
    document.documentElement.dataset.theme = theme;
    document.cookie = "theme=" + theme + year;
  };
})();
