/* The search of the theme looks for words that begin with each word of a query, so that "a" finds
   every title with an A. This leaves out such words before the query reaches the index. */
(() => {
  const QUERY = 2; // type of the theme's message
  const IGNORED = new Set(
    "a about an and are as at be by can do does for from how i if in is it my of on or over should that the this to was what when where which who why with you".split(" "),
  );
  const post = Worker.prototype.postMessage;
  Worker.prototype.postMessage = function (message, ...rest) {
    if (message?.type === QUERY) {
      const words = message.data.split(/\s+/);
      const kept = words.filter((word) => !IGNORED.has(word.toLowerCase()));
      message = { ...message, data: (kept.length ? kept : words).join(" ") };
    }
    return post.call(this, message, ...rest);
  };
})();
